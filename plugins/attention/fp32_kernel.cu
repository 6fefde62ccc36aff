// SPDX-License-Identifier: Apache-2.0
// fp32 attention in plain FMA: one warp per query row, 32 keys at a time. A lane computes the score of one key, and one
// column of the output. Written to be correct and easy to read.
#include <cmath>

#include "attention/kernels.h"
#include "attention/prefix.cuh"
#include "attention/query_tiles.cuh"
#include "attention/window.cuh"

namespace padfree {
namespace {

constexpr int kRows = 16;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kKeys = kWarpSize;
constexpr int kSharedRows = kRows + 2 * kKeys;  // of Q, K and V

__device__ float element(const AttentionOperand& operand, int64_t token, int head, int d) {
  return static_cast<const float*>(operand.data)[token * operand.token_stride + head * operand.head_stride + d];
}

__device__ float bias(const AttentionOperand& operand, int head, int d) {
  return operand.bias ? static_cast<const float*>(operand.bias)[head * operand.bias_head_stride + d] : 0.f;
}

// What is added to the score of a row and a key, `distance` = key - row; -inf where the row does not see the key.
__device__ float scoreBias(const AttentionParams& p, int head, int distance) {
  if (p.window_left >= 0 && -distance > p.window_left) return -INFINITY;
  if (p.window_right >= 0 && distance > p.window_right) return -INFINITY;
  if (p.bias == AttentionBias::kSlope) return -p.slopes[head] * fabsf(static_cast<float>(distance));
  if (p.bias != AttentionBias::kDistance) return 0.f;
  const int entry = max(min(distance, p.bias_range), -p.bias_range) + p.bias_range;
  return p.distance_bias[head * (2 * static_cast<int64_t>(p.bias_range) + 1) + entry];
}

// What a disentangled bias adds to q . k, both with their biases.
__device__ float positionProducts(const AttentionParams& p, int head, const float* q, const float* k, int distance) {
  const int64_t entry = max(min(distance, p.bias_range), -p.bias_range) + p.bias_range;
  const int64_t row = (entry * p.H + head) * p.D;
  float sum = 0.f;
  if (p.k_position) {
    for (int d = 0; d < p.D; ++d) sum = fmaf(q[d], static_cast<const float*>(p.k_position)[row + d], sum);
  }
  if (p.q_position) {
    for (int d = 0; d < p.D; ++d) sum = fmaf(k[d], static_cast<const float*>(p.q_position)[row + d], sum);
  }
  return sum;
}

// kColumns: those of a lane, 32 apart. A row of shared memory has an odd number of elements: lanes that read one column
// of different rows hit different banks.
template <int kColumns>
constexpr int kStride = kColumns * kWarpSize + 1;

template <int kColumns>
__global__ void __launch_bounds__(kThreads) attentionFp32Kernel(AttentionParams p) {
  extern __shared__ float shared[];
  constexpr int kRowStride = kStride<kColumns>;
  float* const q = shared;
  float* const keys = q + kRows * kRowStride;
  float* const values = keys + kKeys * kRowStride;
  const int head = blockIdx.y, kv_head = head / (p.H / p.kv_heads), warp = threadIdx.x / kWarpSize,
            lane = threadIdx.x % kWarpSize;
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
    q[i / p.D * kRowStride + d] = element(p.q, tile.begin + tile.first + i / p.D, head, d) + bias(p.q, head, d);
  }
  constexpr int kRowsPerWarp = kRows / kWarps;
  float output[kRowsPerWarp][kColumns] = {}, maximum[kRowsPerWarp], sum[kRowsPerWarp] = {};
  for (float& value : maximum) value = -INFINITY;

  const Prefix prefix = p.prefix ? prefixOf(p.prefix, p.cu_seqlens, p.B, p.T, tile.sequence) : Prefix{};
  const int first_row = prefix.length + tile.first;
  const KeyRange range = visibleKeys(p, first_row, first_row + tile.rows - 1, prefix.length + tile.length);
  for (int first = range.begin; first < range.end; first += kKeys) {
    const int count = min(kKeys, range.end - first);
    __syncthreads();  // the previous keys are no longer needed
    for (int i = threadIdx.x; i < count * p.D; i += kThreads) {
      const int key = i / p.D, d = i % p.D;
      const int own = first + key - prefix.length, token = own < 0 ? prefix.begin + first + key : tile.begin + own;
      keys[key * kRowStride + d] = element(p.k, token, kv_head, d) + bias(p.k, kv_head, d);
      values[key * kRowStride + d] = element(p.v, token, kv_head, d) + bias(p.v, kv_head, d);
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int row = r * kWarps + warp;
      if (row >= tile.rows) continue;
      float score = -INFINITY;
      if (lane < count) {
        score = 0.f;
        for (int d = 0; d < p.D; ++d) score = fmaf(q[row * kRowStride + d], keys[lane * kRowStride + d], score);
        const int distance = first + lane - (first_row + row);
        if (p.bias == AttentionBias::kDisentangled) {
          score += positionProducts(p, head, q + row * kRowStride, keys + lane * kRowStride, distance);
        }
        score = score * p.scale + scoreBias(p, head, distance);
      }
      const float peak = fmaxf(maximum[r], warpMax(score));
      const float reference = peak == -INFINITY ? 0.f : peak;  // before the row has seen a key
      const float weight = expf(score - reference), correction = expf(maximum[r] - reference);
      maximum[r] = peak;
      sum[r] = sum[r] * correction + warpSum(weight);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) output[r][c] *= correction;
      for (int key = 0; key < count; ++key) {
        const float shared_weight = __shfl_sync(kFullMask, weight, key);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int d = c * kWarpSize + lane;
          if (d < p.D) output[r][c] = fmaf(shared_weight, values[key * kRowStride + d], output[r][c]);
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

template <int kColumns>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  const auto kernel = attentionFp32Kernel<kColumns>;
  constexpr int kBytes = kSharedRows * kStride<kColumns> * static_cast<int>(sizeof(float));
  static_assert(kBytes <= 99 * 1024, "sm_86, sm_89 and sm_120 give a block 99 KB");
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(countQueryTiles(params.T, params.B, kRows), params.H);
  kernel<<<grid, kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launchAttentionFp32(const AttentionParams& params, cudaStream_t stream) {
  return params.D <= 128 ? launch<4>(params, stream) : launch<kMaxHeadSize / kWarpSize>(params, stream);
}

}  // namespace padfree
