// SPDX-License-Identifier: Apache-2.0
// Variable-length attention on tensor cores for sm_80 and newer, in the manner of FlashAttention-2 (arXiv 2307.08691):
// a block of query rows keeps its scores, its running maximum and its output in registers while K and V stream through
// shared memory in tiles of 64 keys, two tiles deep. Rows that no sequence owns are never read.
//
// Biases cost no pass of their own: that of K shifts every score of a row by the same amount and leaves the softmax as
// it is, that of V is added to the output because the weights of a row sum to 1, that of Q is added to the fragments.
#include <cmath>

#include "attention/kernel.h"
#include "attention/mma.cuh"
#include "attention/tiles.cuh"

namespace padfree {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kKeys = 64;  // keys a tile
constexpr int kKeyBlocks = kKeys / 8;
constexpr int kPad = 8;  // elements: an odd number of 16-byte chunks a row keeps ldmatrix free of bank conflicts

// kD: head size rounded up to what the registers are laid out for; kBlocks: 16-row fragments of queries a warp.
template <int kD, int kBlocks>
struct Shape {
  static constexpr int kRows = kWarps * kBlocks * 16;
  static constexpr int kStride = kD + kPad;
  static constexpr int kChunks = kD / 8;
  static constexpr int kSharedElements = (kRows + 4 * kKeys) * kStride;
};

// Copies rows [first, first + kRows) of one head to shared memory; what lies beyond `length` or D becomes zeros, so
// that whatever follows a sequence cannot reach its results (0 * NaN is NaN).
template <typename T, int kRows, int kD>
__device__ void copyTile(T* shared, const AttentionOperand& operand, int64_t offset, int first, int length, int D) {
  constexpr int kChunks = kD / 8;
  const T* data = static_cast<const T*>(operand.data) + offset;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool valid = first + row < length && column < D;
    const T* source = valid ? data + (first + row) * operand.token_stride + column : data;
    copyAsync16(shared + row * (kD + kPad) + column, source, valid);
  }
}

template <typename T, int kD, int kBlocks>
__global__ void __launch_bounds__(kThreads) attentionMmaKernel(AttentionParams p) {
  using S = Shape<kD, kBlocks>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared_q = reinterpret_cast<T*>(shared_bytes);
  T* const shared_k = shared_q + S::kRows * S::kStride;
  T* const shared_v = shared_k + 2 * kKeys * S::kStride;

  const int head = blockIdx.y, warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const QueryTile tile = findQueryTile<S::kRows>(p.cu_seqlens, p.B, p.T, blockIdx.x);
  if (tile.rows <= 0) return;
  T* const y = static_cast<T*>(p.y) + static_cast<int64_t>(tile.begin + tile.first) * p.H * p.D + head * p.D;
  const int chunks = p.D / 8;
  if (tile.filler) {
    for (int i = threadIdx.x; i < tile.rows * chunks; i += kThreads) {
      *reinterpret_cast<uint4*>(y + static_cast<int64_t>(i / chunks) * p.H * p.D + i % chunks * 8) = uint4{};
    }
    return;
  }

  const auto offsetOf = [&](const AttentionOperand& operand) {
    return tile.begin * operand.token_stride + head * operand.head_stride;
  };
  const int64_t k_offset = offsetOf(p.k), v_offset = offsetOf(p.v);
  copyTile<T, S::kRows, kD>(shared_q, p.q, offsetOf(p.q), tile.first, tile.length, p.D);
  copyTile<T, kKeys, kD>(shared_k, p.k, k_offset, 0, tile.length, p.D);
  commitCopies();
  copyTile<T, kKeys, kD>(shared_v, p.v, v_offset, 0, tile.length, p.D);
  commitCopies();

  unsigned q[kBlocks][kD / 16][4];
  float output[kBlocks][kD / 8][4] = {};
  float maximum[kBlocks][2], sum[kBlocks][2];  // rows lane / 4 and lane / 4 + 8 of each fragment; sums of this lane
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    maximum[block][0] = maximum[block][1] = -INFINITY;
    sum[block][0] = sum[block][1] = 0.f;
  }
  const float scale_log2 = p.scale * 1.4426950408889634f;
  const int tiles = ceilDiv(tile.length, kKeys);
  const int warp_row = warp * kBlocks * 16;
  const bool busy = warp_row < tile.rows;  // a warp without rows helps with the copies only

  for (int j = 0; j < tiles; ++j) {
    const int stage = (j & 1) * kKeys * S::kStride, next = kKeys * S::kStride - stage;
    if (j + 1 < tiles) copyTile<T, kKeys, kD>(shared_k + next, p.k, k_offset, (j + 1) * kKeys, tile.length, p.D);
    commitCopies();
    waitCopies<2>();  // K of this tile, and Q
    __syncthreads();

    float scores[kBlocks][kKeyBlocks][4] = {};
    if (busy) {
      if (j == 0) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
          for (int d = 0; d < kD / 16; ++d) {
            loadMatrices(q[block][d],
                         shared_q + (warp_row + block * 16 + lane % 16) * S::kStride + d * 16 + lane / 16 * 8);
          }
        }
        if (p.q.bias) {
          const T* bias = static_cast<const T*>(p.q.bias) + head * p.q.bias_head_stride;
#pragma unroll
          for (int i = 0; i < kD / 8; ++i) {
            const int column = i * 8 + lane % 4 * 2;
            if (column >= p.D) continue;
            const float2 addend = {toFloat(bias[column]), toFloat(bias[column + 1])};
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
              for (int row = 0; row < 2; ++row) {
                unsigned& pair = q[block][i / 2][i % 2 * 2 + row];
                const float2 value = unpackPair<T>(pair);
                pair = packPair<T>(value.x + addend.x, value.y + addend.y);
              }
            }
          }
        }
      }
      const T* k = shared_k + stage;
#pragma unroll
      for (int d = 0; d < kD / 16; ++d) {
#pragma unroll
        for (int n = 0; n < kKeyBlocks; n += 2) {
          unsigned b[4];
          loadMatrices(b, k + (n * 8 + lane / 16 * 8 + lane % 8) * S::kStride + d * 16 + lane / 8 % 2 * 8);
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
            multiplyAdd<T>(scores[block][n], q[block][d], b[0], b[1]);
            multiplyAdd<T>(scores[block][n + 1], q[block][d], b[2], b[3]);
          }
        }
      }
      const int keys = tile.length - j * kKeys;
      if (keys < kKeys) {
#pragma unroll
        for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (n * 8 + lane % 4 * 2 + i % 2 < keys) continue;
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) scores[block][n][i] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          float peak = maximum[block][row];
#pragma unroll
          for (int n = 0; n < kKeyBlocks; ++n) {
            peak = fmaxf(peak, fmaxf(scores[block][n][row * 2], scores[block][n][row * 2 + 1]));
          }
          peak = fmaxf(peak, __shfl_xor_sync(kFullMask, peak, 1));
          peak = fmaxf(peak, __shfl_xor_sync(kFullMask, peak, 2));
          const float correction = exp2Fast((maximum[block][row] - peak) * scale_log2);
          maximum[block][row] = peak;
          const float shift = peak * scale_log2;
          float total = 0.f;
#pragma unroll
          for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
            for (int i = row * 2; i < row * 2 + 2; ++i) {
              scores[block][n][i] = exp2Fast(fmaf(scores[block][n][i], scale_log2, -shift));
              total += scores[block][n][i];
            }
          }
          sum[block][row] = sum[block][row] * correction + total;
#pragma unroll
          for (int d = 0; d < kD / 8; ++d) {
            output[block][d][row * 2] *= correction;
            output[block][d][row * 2 + 1] *= correction;
          }
        }
      }
    }

    if (j + 1 < tiles) copyTile<T, kKeys, kD>(shared_v + next, p.v, v_offset, (j + 1) * kKeys, tile.length, p.D);
    commitCopies();
    waitCopies<2>();  // V of this tile
    __syncthreads();
    if (busy) {
      const T* v = shared_v + stage;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; n += 2) {
        unsigned weights[kBlocks][4];
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          weights[block][0] = packPair<T>(scores[block][n][0], scores[block][n][1]);
          weights[block][1] = packPair<T>(scores[block][n][2], scores[block][n][3]);
          weights[block][2] = packPair<T>(scores[block][n + 1][0], scores[block][n + 1][1]);
          weights[block][3] = packPair<T>(scores[block][n + 1][2], scores[block][n + 1][3]);
        }
#pragma unroll
        for (int d = 0; d < kD / 8; d += 2) {
          unsigned b[4];
          loadMatricesTransposed(b, v + (n * 8 + lane % 16) * S::kStride + d * 8 + lane / 16 * 8);
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
            multiplyAdd<T>(output[block][d], weights[block], b[0], b[1]);
            multiplyAdd<T>(output[block][d + 1], weights[block], b[2], b[3]);
          }
        }
      }
    }
  }
  if (!busy) return;

  // Through shared memory, so that rows leave in 16-byte stores. A warp reads and writes its own rows only.
  const T* v_bias = p.v.bias ? static_cast<const T*>(p.v.bias) + head * p.v.bias_head_stride : nullptr;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float total = sum[block][row];
      total += __shfl_xor_sync(kFullMask, total, 1);
      total += __shfl_xor_sync(kFullMask, total, 2);
      const float inverse = 1.f / total;
      T* target = shared_q + (warp_row + block * 16 + row * 8 + lane / 4) * S::kStride + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kD / 8; ++d) {
        float2 value = {output[block][d][row * 2] * inverse, output[block][d][row * 2 + 1] * inverse};
        const int column = d * 8 + lane % 4 * 2;
        if (v_bias && column < p.D) {
          value.x += toFloat(v_bias[column]);
          value.y += toFloat(v_bias[column + 1]);
        }
        *reinterpret_cast<unsigned*>(target + d * 8) = packPair<T>(value.x, value.y);
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < kBlocks * 16 * S::kChunks; i += kWarpSize) {
    const int row = warp_row + i / S::kChunks, column = i % S::kChunks * 8;
    if (row >= tile.rows || column >= p.D) continue;
    *reinterpret_cast<uint4*>(y + static_cast<int64_t>(row) * p.H * p.D + column) =
        *reinterpret_cast<const uint4*>(shared_q + row * S::kStride + column);
  }
}

template <typename T, int kD, int kBlocks>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  using S = Shape<kD, kBlocks>;
  constexpr int kBytes = S::kSharedElements * static_cast<int>(sizeof(T));
  static_assert(kBytes <= 99 * 1024, "sm_86 and sm_89 give a block 99 KB");
  const cudaError_t status =
      cudaFuncSetAttribute(attentionMmaKernel<T, kD, kBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(countQueryTiles(params.T, params.B, S::kRows), params.H);
  attentionMmaKernel<T, kD, kBlocks><<<grid, kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

// Two fragments a warp halve the reads of K and V from shared memory, but a tile of 128 rows leaves more of itself
// empty with short sequences, and takes enough tokens to give every multiprocessor two of them.
bool wantsTallTiles(const AttentionParams& params) {
  constexpr int kTallRows = 128, kTilesToFillTheChip = 256;
  const bool may_be_long = params.max_seq_len == 0 || params.max_seq_len > kTallRows;
  return may_be_long && static_cast<int64_t>(params.T / kTallRows) * params.H >= kTilesToFillTheChip;
}

template <typename T>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  const bool tall = wantsTallTiles(params);
  if (params.D <= 32) return tall ? launch<T, 32, 2>(params, stream) : launch<T, 32, 1>(params, stream);
  if (params.D <= 64) return tall ? launch<T, 64, 2>(params, stream) : launch<T, 64, 1>(params, stream);
  if (params.D <= 96) return launch<T, 96, 1>(params, stream);
  return launch<T, 128, 1>(params, stream);
}

}  // namespace

cudaError_t launchAttentionMma(const AttentionParams& params, cudaStream_t stream) {
  return params.type == DataType::kFloat16 ? chooseShape<half>(params, stream)
                                           : chooseShape<__nv_bfloat16>(params, stream);
}

}  // namespace padfree
