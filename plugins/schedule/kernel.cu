// SPDX-License-Identifier: Apache-2.0
#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "schedule/launch.h"

namespace padfree {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kTokenThreads = 256;

// One block: scans kThreads lengths at a time. Sums saturate at T, which also keeps them from overflowing.
__global__ void __launch_bounds__(kThreads) prefixSumKernel(ScheduleParams p) {
  __shared__ int totals[kWarps];
  releaseNextGrid();
  waitForPriorGrids();
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const auto saturate = [&](int64_t sum) { return static_cast<int>(min(sum, static_cast<int64_t>(p.T))); };
  int64_t carry = 0;
  if (threadIdx.x == 0) p.cu_seqlens[0] = 0;
  for (int first = 0; first < p.B; first += kThreads) {
    const int b = first + threadIdx.x;
    const int length = b < p.B ? min(max(p.seq_lens[b], 0), p.T) : 0;
    int64_t sum = length;
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int64_t below = __shfl_up_sync(kFullMask, sum, offset);
      if (lane >= offset) sum += below;
    }
    if (lane == kWarpSize - 1) totals[warp] = saturate(sum);
    __syncthreads();
    sum += carry;
    for (int i = 0; i < kWarps; ++i) {
      if (i < warp) sum += totals[i];
      carry += totals[i];
    }
    if (b < p.B) p.cu_seqlens[b + 1] = saturate(sum);
    __syncthreads();
  }
}

// One thread a token.
__global__ void __launch_bounds__(kTokenThreads) tokenIndexKernel(ScheduleParams p) {
  releaseNextGrid();
  waitForPriorGrids();
  const int t = blockIdx.x * kTokenThreads + threadIdx.x;
  if (t >= p.T) return;
  int first = 0, last = p.B + 1;  // the last sequence that starts at or before t
  while (last - first > 1) {
    const int middle = first + (last - first) / 2;
    (p.cu_seqlens[middle] <= t ? first : last) = middle;
  }
  const int s = t - p.cu_seqlens[first];
  p.token_index[t] = first < p.B && s < p.S ? first * p.S + s : -1;
}

}  // namespace

cudaError_t launchSchedule(const ScheduleParams& params, cudaStream_t stream) {
  const cudaError_t status = launchDependent(prefixSumKernel, 1, kThreads, 0, stream, params);
  if (status != cudaSuccess || !params.token_index || params.T <= 0) return status;
  return launchDependent(tokenIndexKernel, ceilDiv(params.T, kTokenThreads), kTokenThreads, 0, stream, params);
}

}  // namespace padfree
