// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a block of kThreads.
#pragma once

#include "common/device.cuh"

namespace padfree {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;
static_assert(kWarps == kWarpSize);

// The sum over this lane and those below it.
template <typename Integer>
__device__ inline Integer warpInclusiveSum(Integer x) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const Integer below = __shfl_up_sync(kFullMask, x, offset);
    if (lane >= offset) x += below;
  }
  return x;
}

// The sum over this thread and those below it; `total` becomes that over all.
template <typename Integer>
__device__ inline Integer blockInclusiveSum(Integer x, Integer (&scratch)[kWarps], Integer& total) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  x = warpInclusiveSum(x);
  __syncthreads();  // the last use of scratch is over
  if (lane == kWarpSize - 1) scratch[warp] = x;
  __syncthreads();
  const Integer warps = warpInclusiveSum(scratch[lane]);
  total = __shfl_sync(kFullMask, warps, kWarps - 1);
  const Integer below = __shfl_sync(kFullMask, warps, max(warp - 1, 0));
  return warp > 0 ? x + below : x;
}

}  // namespace padfree
