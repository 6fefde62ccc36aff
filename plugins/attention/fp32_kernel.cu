// SPDX-License-Identifier: Apache-2.0
// fp32 attention in plain FMA: one warp a query row, 32 keys at a time, a key a lane for the scores and a column a lane
// for the output. Made to be right and easy to read.
#include <cmath>

#include "attention/kernels.h"
#include "attention/query_tiles.cuh"

namespace padfree {
namespace {

constexpr int kRows = 16;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kKeys = kWarpSize;
constexpr int kColumns = kMaxHeadSize / kWarpSize;
constexpr int kStride = kMaxHeadSize + 1;  // odd: lanes that read one column of different rows hit different banks

__device__ float element(const AttentionOperand& operand, int64_t token, int head, int d) {
  return static_cast<const float*>(operand.data)[token * operand.token_stride + head * operand.head_stride + d];
}

__device__ float bias(const AttentionOperand& operand, int head, int d) {
  return operand.bias ? static_cast<const float*>(operand.bias)[head * operand.bias_head_stride + d] : 0.f;
}

__global__ void __launch_bounds__(kThreads) attentionFp32Kernel(AttentionParams p) {
  __shared__ float q[kRows][kStride];
  __shared__ float keys[kKeys][kStride];
  __shared__ float values[kKeys][kStride];
  const int head = blockIdx.y, warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const QueryTile tile = findQueryTile<kRows>(p.cu_seqlens, p.B, p.T, blockIdx.x);
  if (tile.rows <= 0) return;
  float* const y = static_cast<float*>(p.y) + static_cast<int64_t>(tile.begin + tile.first) * p.H * p.D + head * p.D;
  if (tile.filler) {
    for (int i = threadIdx.x; i < tile.rows * p.D; i += kThreads) {
      y[static_cast<int64_t>(i / p.D) * p.H * p.D + i % p.D] = 0.f;
    }
    return;
  }
  for (int i = threadIdx.x; i < tile.rows * p.D; i += kThreads) {
    const int d = i % p.D;
    q[i / p.D][d] = element(p.q, tile.begin + tile.first + i / p.D, head, d) + bias(p.q, head, d);
  }
  constexpr int kRowsPerWarp = kRows / kWarps;
  float output[kRowsPerWarp][kColumns] = {}, maximum[kRowsPerWarp], sum[kRowsPerWarp] = {};
  for (float& value : maximum) value = -INFINITY;

  for (int first = 0; first < tile.length; first += kKeys) {
    const int count = min(kKeys, tile.length - first);
    __syncthreads();  // the tile before is used up
    for (int i = threadIdx.x; i < count * p.D; i += kThreads) {
      const int key = i / p.D, d = i % p.D;
      keys[key][d] = element(p.k, tile.begin + first + key, head, d) + bias(p.k, head, d);
      values[key][d] = element(p.v, tile.begin + first + key, head, d) + bias(p.v, head, d);
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int row = r * kWarps + warp;
      if (row >= tile.rows) continue;
      float score = -INFINITY;
      if (lane < count) {
        score = 0.f;
        for (int d = 0; d < p.D; ++d) score = fmaf(q[row][d], keys[lane][d], score);
        score *= p.scale;
      }
      const float peak = fmaxf(maximum[r], warpMax(score));
      const float weight = expf(score - peak), correction = expf(maximum[r] - peak);
      maximum[r] = peak;
      sum[r] = sum[r] * correction + warpSum(weight);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) output[r][c] *= correction;
      for (int key = 0; key < count; ++key) {
        const float shared_weight = __shfl_sync(kFullMask, weight, key);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int d = c * kWarpSize + lane;
          if (d < p.D) output[r][c] = fmaf(shared_weight, values[key][d], output[r][c]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const int row = r * kWarps + warp;
    if (row >= tile.rows) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = c * kWarpSize + lane;
      if (d < p.D) y[static_cast<int64_t>(row) * p.H * p.D + d] = output[r][c] / sum[r];
    }
  }
}

}  // namespace

cudaError_t launchAttentionFp32(const AttentionParams& params, cudaStream_t stream) {
  const dim3 grid(countQueryTiles(params.T, params.B, kRows), params.H);
  attentionFp32Kernel<<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace padfree
