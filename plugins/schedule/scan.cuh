// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a block of kWarps warps. Terms and sums saturate at `limit`, which is below 2^31.
#pragma once

#include "common/device.cuh"

namespace padfree {

// The sum over this lane and those below it.
__device__ inline unsigned warpInclusiveSum(unsigned x, unsigned limit) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const unsigned below = __shfl_up_sync(kFullMask, x, offset);
    if (lane >= offset) x = min(x + below, limit);
  }
  return x;
}

// The sum over the warps before this one, each of which gives its own in all its lanes; `total` becomes that over all.
template <int kWarps>
__device__ unsigned blockExclusiveSum(unsigned own, unsigned limit, unsigned (&scratch)[kWarps], unsigned& total) {
  static_assert(kWarps <= kWarpSize);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  __syncthreads();  // the last use of scratch is over
  if (lane == 0) scratch[warp] = own;
  __syncthreads();
  const unsigned warps = warpInclusiveSum(lane < kWarps ? scratch[lane] : 0, limit);
  total = __shfl_sync(kFullMask, warps, kWarps - 1);
  const unsigned before = __shfl_sync(kFullMask, warps, max(warp - 1, 0));
  return warp > 0 ? before : 0;
}

}  // namespace padfree
