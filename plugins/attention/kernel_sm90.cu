// SPDX-License-Identifier: Apache-2.0
// Variable-length attention for Hopper (sm_90a): warpgroups of 64 query rows multiply with wgmma while K and V arrive
// in a ring of shared-memory stages by TMA. Several warpgroups share a multiprocessor, so that the matrix products of
// one run beside the softmax of the others (FlashAttention-3, arXiv 2407.08608, overlaps the same two).
//
// A box of 64 rows may reach beyond its sequence. Scores of keys there are masked; rows of V there are overwritten by
// zeros, because a weight of 0 does not silence a NaN.
#include <cuda.h>

#include <cmath>

#include "attention/kernel.h"
#include "attention/tiles.cuh"
#include "attention/wgmma.cuh"

namespace padfree {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kGroupRows = 64;  // query rows a warpgroup
constexpr int kKeys = 64;       // keys a stage
constexpr float kLazyLog2 = 8.f;
constexpr int kPanelBytes = kKeys * kPanelRowBytes;

template <int kD, int kGroups, int kStages>
struct Shape {
  // How far loads run ahead: with two warpgroups, one may lag a stage without stalling the other.
  static constexpr int kAhead = kGroups == 1 ? kStages - 1 : kStages - 2;
  // Wide heads leave no registers for Q; the matrix unit reads it from shared memory then.
  static constexpr bool kQueriesInRegisters = kD <= 64;
  static constexpr int kPanels = kD / kPanelColumns;
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kThreads = kGroups * kWarpgroup;
  static constexpr int kSharedBytes = (kGroups + 2 * kStages) * kTileBytes + 1024;  // and room to align
};

struct Maps {
  CUtensorMap q, k, v;  // [T, H, D] in boxes of 64 tokens, one head, 64 columns
};

template <int kStages>
struct Barriers {
  uint64_t queries, keys[kStages], values[kStages], empty[kStages];
};

template <typename T, int kD, int kGroups, int kBlocksPerSm, int kStages>
__global__ void __launch_bounds__(kGroups* kWarpgroup, kBlocksPerSm)
    attentionSm90Kernel(const __grid_constant__ AttentionParams p, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shape<kD, kGroups, kStages>;
  extern __shared__ unsigned char shared_bytes[];
  __shared__ Barriers<kStages> barriers;
  unsigned char* const shared_q = shared_bytes + (-sharedAddress(shared_bytes) & 1023);
  unsigned char* const shared_k = shared_q + kGroups * S::kTileBytes;
  unsigned char* const shared_v = shared_k + kStages * S::kTileBytes;

  const int head = blockIdx.y, lane = threadIdx.x % kWarpSize;
  const int group = threadIdx.x / kWarpgroup, in_group = threadIdx.x % kWarpgroup;
  const QueryTile tile = findQueryTile<S::kRows>(p.cu_seqlens, p.B, p.T, blockIdx.x);
  if (tile.rows <= 0) return;
  T* const y = static_cast<T*>(p.y) + static_cast<int64_t>(tile.begin + tile.first) * p.H * p.D + head * p.D;
  if (tile.filler) {
    const int chunks = p.D / 8;
    for (int i = threadIdx.x; i < tile.rows * chunks; i += S::kThreads) {
      *reinterpret_cast<uint4*>(y + static_cast<int64_t>(i / chunks) * p.H * p.D + i % chunks * 8) = uint4{};
    }
    return;
  }
  const int groups = min(kGroups, ceilDiv(tile.rows, kGroupRows));
  const int tiles = ceilDiv(tile.length, kKeys);

  const auto load = [&](const CUtensorMap& map, unsigned char* target, int first, uint64_t* barrier) {
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
      copyBox(sharedAddress(target) + panel * kPanelBytes, map, panel * kPanelColumns, head, tile.begin + first,
              barrier);
    }
  };
  const auto loadStage = [&](int j) {
    const int stage = j % kStages;
    barrierExpect(&barriers.keys[stage], S::kTileBytes);
    load(maps.k, shared_k + stage * S::kTileBytes, j * kKeys, &barriers.keys[stage]);
    barrierExpect(&barriers.values[stage], S::kTileBytes);
    load(maps.v, shared_v + stage * S::kTileBytes, j * kKeys, &barriers.values[stage]);
  };
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.v}) prefetchMap(*map);
    barrierInit(&barriers.queries, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      barrierInit(&barriers.keys[stage], 1);
      barrierInit(&barriers.values[stage], 1);
      barrierInit(&barriers.empty[stage], groups);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fenceSharedForWgmma();
    barrierExpect(&barriers.queries, groups * S::kTileBytes);
    for (int i = 0; i < groups; ++i) {
      load(maps.q, shared_q + i * S::kTileBytes, tile.first + i * kGroupRows, &barriers.queries);
    }
    for (int j = 0; j < min(S::kAhead, tiles); ++j) loadStage(j);
  }
  __syncthreads();
  if (group >= groups) return;

  unsigned char* const group_q = shared_q + group * S::kTileBytes;
  barrierWait(&barriers.queries, 0);
  if (p.q.bias) {
    const T* bias = static_cast<const T*>(p.q.bias) + head * p.q.bias_head_stride;
    for (int i = in_group; i < kGroupRows * (p.D / 8); i += kWarpgroup) {
      const int row = i / (p.D / 8), column = i % (p.D / 8) * 8;
      T* chunk = reinterpret_cast<T*>(group_q + column / kPanelColumns * kPanelBytes +
                                      panelOffset(row, column % kPanelColumns / 8));
      float value[8];
      loadFloats(chunk, value);
      addFloats(bias + column, value);
      storeFloats(chunk, value);
    }
    fenceSharedForWgmma();
    namedBarrier(group + 1, kWarpgroup);
  }

  const uint64_t q_descriptor = panelDescriptor(sharedAddress(group_q));
  const unsigned k_base = sharedAddress(shared_k), v_base = sharedAddress(shared_v);
  const float scale_log2 = p.scale * 1.4426950408889634f;
  float scores[8][4];
  unsigned weights[kKeys / 16][4];
  float output[S::kPanels][8][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // rows lane / 4 and lane / 4 + 8; sums of this lane

  unsigned q[S::kQueriesInRegisters ? kD / 16 : 1][4];
  if constexpr (S::kQueriesInRegisters) {
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      const int row = in_group / kWarpSize * 16 + lane % 16;
      loadMatrices(q[d], group_q + d / 4 * kPanelBytes + panelOffset(row, d % 4 * 2 + lane / 16));
    }
  }
  const auto multiplyKeys = [&](int j) {
    const int stage = j % kStages;
    barrierWait(&barriers.keys[stage], j / kStages & 1);
    const uint64_t k = panelDescriptor(k_base + stage * S::kTileBytes);
    wgmmaFence();
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      const int offset = (d / 4 * kPanelBytes + d % 4 * 32) >> 4;
      if constexpr (S::kQueriesInRegisters) {
        wgmmaQueries<T>(scores, q[d], k + offset, d > 0);
      } else {
        wgmmaShared<T>(scores, q_descriptor + offset, k + offset, d > 0);
      }
    }
    wgmmaCommit();
  };
  const auto multiplyValues = [&](int j) {
    const int stage = j % kStages;
    barrierWait(&barriers.values[stage], j / kStages & 1);
    const int keys = tile.length - j * kKeys;
    if (keys < kKeys) {
      unsigned char* values = shared_v + stage * S::kTileBytes;
      for (int i = keys * 8 + in_group; i < kKeys * 8; i += kWarpgroup) {
        for (int panel = 0; panel < S::kPanels; ++panel) {
          *reinterpret_cast<uint4*>(values + panel * kPanelBytes + i * 16) = uint4{};
        }
      }
      fenceSharedForWgmma();
      namedBarrier(group + 1, kWarpgroup);
    }
    const uint64_t v = panelDescriptor(v_base + stage * S::kTileBytes);
    wgmmaFence();
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        wgmmaRegisters<T>(output[panel], weights[n], v + ((panel * kPanelBytes + n * 16 * kPanelRowBytes) >> 4));
      }
    }
    wgmmaCommit();
  };
  const auto softmax = [&](int keys) {
    if (keys < kKeys) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (n * 8 + lane % 4 * 2 + i % 2 >= keys) scores[n][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float peak = maximum[row];
#pragma unroll
      for (int n = 0; n < 8; ++n) peak = fmaxf(peak, fmaxf(scores[n][row * 2], scores[n][row * 2 + 1]));
      peak = fmaxf(peak, __shfl_xor_sync(kFullMask, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(kFullMask, peak, 2));
      // The running maximum only has to keep the exponentials in range: it moves when they would grow beyond 2^8, and
      // the output is rescaled then alone. Four lanes share a row and agree; a warp moves as one.
      const bool moves = (peak - maximum[row]) * scale_log2 > kLazyLog2;
      if (__any_sync(kFullMask, moves)) {
        const float reference = moves ? peak : maximum[row];
        const float correction = exp2Fast((maximum[row] - reference) * scale_log2);
        maximum[row] = reference;
        sum[row] *= correction;
#pragma unroll
        for (int panel = 0; panel < S::kPanels; ++panel) {
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            output[panel][n][row * 2] *= correction;
            output[panel][n][row * 2 + 1] *= correction;
          }
        }
      }
      const float shift = maximum[row] * scale_log2;
      float total = 0.f;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float a = exp2Fast(fmaf(scores[n][row * 2], scale_log2, -shift));
        const float b = exp2Fast(fmaf(scores[n][row * 2 + 1], scale_log2, -shift));
        total += a + b;
        weights[n / 2][n % 2 * 2 + row] = packPair<T>(a, b);
      }
      sum[row] += total;
    }
  };

  multiplyKeys(0);
  wgmmaWait<0>();
  for (int j = 0; j + 1 < tiles; ++j) {
    if (threadIdx.x == 0 && j + S::kAhead < tiles) {
      // The stage to fill held an earlier tile, which both warpgroups must have left.
      const int before = j + S::kAhead - kStages;
      if (before >= 0) barrierWait(&barriers.empty[before % kStages], before / kStages & 1);
      loadStage(j + S::kAhead);
    }
    softmax(kKeys);
    multiplyValues(j);
    multiplyKeys(j + 1);
    wgmmaWait<0>();
    if (in_group == 0) barrierArrive(&barriers.empty[j % kStages]);
  }
  softmax(tile.length - (tiles - 1) * kKeys);
  multiplyValues(tiles - 1);
  wgmmaWait<0>();

  // Through this warp's rows of Q in shared memory, so that rows leave in 16-byte stores.
  const T* v_bias = p.v.bias ? static_cast<const T*>(p.v.bias) + head * p.v.bias_head_stride : nullptr;
  const int warp_row = in_group / kWarpSize * 16;
  __syncwarp();
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float total = sum[row];
    total += __shfl_xor_sync(kFullMask, total, 1);
    total += __shfl_xor_sync(kFullMask, total, 2);
    const float inverse = 1.f / total;
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        float2 value = {output[panel][n][row * 2] * inverse, output[panel][n][row * 2 + 1] * inverse};
        const int column = panel * kPanelColumns + n * 8 + lane % 4 * 2;
        if (v_bias && column < p.D) {
          value.x += toFloat(v_bias[column]);
          value.y += toFloat(v_bias[column + 1]);
        }
        unsigned char* target = group_q + panel * kPanelBytes + panelOffset(warp_row + row * 8 + lane / 4, n);
        *reinterpret_cast<unsigned*>(target + lane % 4 * 4) = packPair<T>(value.x, value.y);
      }
    }
  }
  __syncwarp();
  constexpr int kChunks = kD / 8;
  for (int i = lane; i < 16 * kChunks; i += kWarpSize) {
    const int row = warp_row + i / kChunks, column = i % kChunks * 8;
    const int in_tile = group * kGroupRows + row;
    if (in_tile >= tile.rows || column >= p.D) continue;
    const unsigned char* source =
        group_q + column / kPanelColumns * kPanelBytes + panelOffset(row, column % kPanelColumns / 8);
    *reinterpret_cast<uint4*>(y + static_cast<int64_t>(in_tile) * p.H * p.D + column) =
        *reinterpret_cast<const uint4*>(source);
  }
#endif
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: the library links no driver.
EncodeTiled findEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
  return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(function)
                                                                        : nullptr;
}

bool encode(const AttentionParams& params, const AttentionOperand& operand, CUtensorMap& map) {
  static const EncodeTiled encodeTiled = findEncodeTiled();
  if (!encodeTiled) return false;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(params.D), static_cast<cuuint64_t>(params.H),
                              static_cast<cuuint64_t>(params.T)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(operand.head_stride) * 2,
                                static_cast<cuuint64_t>(operand.token_stride) * 2};
  const cuuint32_t box[] = {kPanelColumns, 1, kKeys}, steps[] = {1, 1, 1};
  const auto type =
      params.type == DataType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encodeTiled(&map, type, 3, const_cast<void*>(operand.data), sizes, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename T, int kD, int kGroups, int kBlocksPerSm, int kStages>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  using S = Shape<kD, kGroups, kStages>;
  Maps maps;
  if (!encode(params, params.q, maps.q) || !encode(params, params.k, maps.k) || !encode(params, params.v, maps.v)) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = attentionSm90Kernel<T, kD, kGroups, kBlocksPerSm, kStages>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(countQueryTiles(params.T, params.B, S::kRows), params.H);
  kernel<<<grid, S::kThreads, S::kSharedBytes, stream>>>(params, maps);
  return cudaGetLastError();
}
// Blocks of one warpgroup, four to a multiprocessor, waste the least on ends of sequences and hide the most of each
// other's start. Blocks of several warpgroups read K and V once for more rows: that pays for long sequences, and for
// rows that are no multiple of 64 bytes, which TMA fetches slowly.
template <typename T>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  const int length = expectedLength(params);
  if (params.D <= 64) {
    const bool tall = length >= 2048 || (length > 128 && params.D % 32 != 0);
    return tall ? launch<T, 64, 2, 2, 4>(params, stream) : launch<T, 64, 1, 4, 2>(params, stream);
  }
  return length > 128 ? launch<T, 128, 3, 1, 3>(params, stream) : launch<T, 128, 1, 2, 2>(params, stream);
}

}  // namespace

cudaError_t launchAttentionSm90(const AttentionParams& params, cudaStream_t stream) {
  return params.type == DataType::kFloat16 ? chooseShape<half>(params, stream)
                                           : chooseShape<__nv_bfloat16>(params, stream);
}

}  // namespace padfree
