// SPDX-License-Identifier: Apache-2.0
// Ordered compaction of a mask in two launches: count the kept slots of every row, then write each row's slots after
// those of the rows before it.
#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "index/launch.h"

namespace padfree {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// One block per row.
__global__ void __launch_bounds__(kThreads) countKernel(IndexParams p) {
  __shared__ int counts[kWarps];
  waitForPriorGrids();
  releaseNextGrid();
  const int b = blockIdx.x;
  const int* mask = p.mask + static_cast<int64_t>(b) * p.S;
  int count = 0;
  for (int s = threadIdx.x; s < p.S; s += kThreads) count += mask[s] != 0;
  count = __reduce_add_sync(kFullMask, count);
  if (threadIdx.x % kWarpSize == 0) counts[threadIdx.x / kWarpSize] = count;
  __syncthreads();
  if (threadIdx.x == 0) {
    int total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += counts[warp];
    p.seq_lens[b] = total;
  }
}

// One block per row.
__global__ void __launch_bounds__(kThreads) writeKernel(IndexParams p) {
  __shared__ int counts[kWarps];
  __shared__ int before[kWarps];
  waitForPriorGrids();
  releaseNextGrid();
  const int b = blockIdx.x, warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  int partial = 0;
  for (int row = threadIdx.x; row < b; row += kThreads) partial += p.seq_lens[row];
  partial = __reduce_add_sync(kFullMask, partial);
  if (lane == 0) before[warp] = partial;
  __syncthreads();
  int base = 0;
  for (int i = 0; i < kWarps; ++i) base += before[i];
  const int* mask = p.mask + static_cast<int64_t>(b) * p.S;
  for (int first = 0; first < p.S; first += kThreads) {
    const int s = first + threadIdx.x;
    const bool is_token = s < p.S && mask[s] != 0;
    const unsigned ballot = __ballot_sync(kFullMask, is_token);
    if (lane == 0) counts[warp] = __popc(ballot);
    __syncthreads();
    int position = base;
    for (int i = 0; i < kWarps; ++i) {
      if (i < warp) position += counts[i];
      base += counts[i];
    }
    if (is_token) p.token_index[position + __popc(ballot & ((1u << lane) - 1))] = b * p.S + s;
    __syncthreads();
  }
  if (b == p.B - 1 && threadIdx.x == 0) *p.num_tokens = base;
}

}  // namespace

cudaError_t launchIndex(const IndexParams& params, cudaStream_t stream) {
  if (params.B <= 0) return cudaMemsetAsync(params.num_tokens, 0, sizeof(int), stream);
  const cudaError_t status = launchDependent(countKernel, params.B, kThreads, 0, stream, params);
  return status == cudaSuccess ? launchDependent(writeKernel, params.B, kThreads, 0, stream, params) : status;
}

}  // namespace padfree
