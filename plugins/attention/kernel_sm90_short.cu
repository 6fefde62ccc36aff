// SPDX-License-Identifier: Apache-2.0
// Variable-length attention for Hopper where sequences are short: a block takes one head of one sequence, whose Q, K
// and V come by TMA at once and stay on chip. No list of tasks: blocks are many and small, the multiprocessors take them
// as they have room, and the loads of one block hide behind the products of the others.
//
// Longer sequences than the block has room for stay right: it goes through them tile by tile.
#include "attention/kernel.h"
#include "attention/sm90_rows.cuh"
#include "common/dependent_launch.cuh"
#include "common/launch.h"
#include "common/tensor_map.h"

namespace padfree {
namespace {

// kTile query rows and keys on chip at a time, shared by kBlockWarpgroups warpgroups; kBlocks of them on a
// multiprocessor.
template <typename Element, int kHeadSize, int kTile_, int kStepKeys, int kBlockWarpgroups, int kResidentBlocks>
struct ShortShape {
  using T = Element;
  static constexpr int kD = kHeadSize, kTile = kTile_, kKeys = kStepKeys, kWarpgroups = kBlockWarpgroups;
  static constexpr int kBlocks = kResidentBlocks;
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  static constexpr int kPanels = kD / kPanelColumns;
  static constexpr int kQueryPanelBytes = kTaskRows * kPanelRowBytes, kQueryBytes = kPanels * kQueryPanelBytes;
  static constexpr int kKeyPanelBytes = kTile * kPanelRowBytes, kKeyBytes = kPanels * kKeyPanelBytes;
  static constexpr int kSharedBytes = kTile / kTaskRows * kQueryBytes + 2 * kKeyBytes + 1024;  // the last to align
};

struct ShortMaps {
  CUtensorMap operand[3];  // q, k, v as [T, H, D], in boxes of kBoxRows
};

template <typename S>
struct ShortShared {
  uint64_t scores_ready, values_ready;  // Q and K are there; V is
};

// One lane a box: Q's rows from `row` on, K's and V's from `key` on, as far as the sequence goes. Warp-collective.
template <typename S>
__device__ void loadTile(const ShortMaps& maps, ShortShared<S>& shared, unsigned base, int head, int begin, int length,
                         int row, int key) {
  constexpr int kQueryBoxes = S::kTile / kBoxRows, kKeyBoxes = S::kTile / kBoxRows;
  static_assert(S::kPanels * (kQueryBoxes + 2 * kKeyBoxes) <= kWarpSize);
  constexpr int kBoxBytes = kBoxRows * kPanelRowBytes;
  const int lane = threadIdx.x % kWarpSize;
  const int query_boxes = ceilDiv(static_cast<unsigned>(min(length - row, S::kTile)), unsigned{kBoxRows});
  const int key_boxes = ceilDiv(static_cast<unsigned>(min(length - key, S::kTile)), unsigned{kBoxRows});
  if (lane == 0) {
    barrierExpect(&shared.scores_ready, (query_boxes + key_boxes) * S::kPanels * kBoxBytes);
    barrierExpect(&shared.values_ready, key_boxes * S::kPanels * kBoxBytes);
  }
  __syncwarp();
  const int panel = lane % S::kPanels, in_panel = lane / S::kPanels;
  if (in_panel < kQueryBoxes) {
    constexpr int kGroupBoxes = kTaskRows / kBoxRows;
    const unsigned target = base + in_panel / kGroupBoxes * S::kQueryBytes + panel * S::kQueryPanelBytes +
                            in_panel % kGroupBoxes * kBoxBytes;
    if (in_panel < query_boxes) {
      copyBox(target, maps.operand[0], panel * kPanelColumns, head, begin + row + in_panel * kBoxRows,
              &shared.scores_ready);
    }
  } else if (in_panel < kQueryBoxes + 2 * kKeyBoxes) {
    const bool is_value = in_panel >= kQueryBoxes + kKeyBoxes;
    const int box = in_panel - kQueryBoxes - (is_value ? kKeyBoxes : 0);
    const unsigned target = base + S::kTile / kTaskRows * S::kQueryBytes + (is_value ? S::kKeyBytes : 0) +
                            panel * S::kKeyPanelBytes + box * kBoxBytes;
    if (box < key_boxes) {
      copyBox(target, maps.operand[is_value ? 2 : 1], panel * kPanelColumns, head, begin + key + box * kBoxRows,
              is_value ? &shared.values_ready : &shared.scores_ready);
    }
  }
}

// Rows behind the last sequence become zeros; the blocks of all heads share them out.
__device__ inline void zeroFiller(const AttentionParams& p, int begin) {
  const int chunks = p.H * p.D / 8;
  uint4* const zeros = static_cast<uint4*>(p.y) + static_cast<int64_t>(begin) * chunks;
  const int64_t count = static_cast<int64_t>(p.T - begin) * chunks;
  for (int64_t i = blockIdx.x % p.H * blockDim.x + threadIdx.x; i < count; i += p.H * blockDim.x) zeros[i] = uint4{};
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    attentionSm90ShortKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ ShortMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  extern __shared__ unsigned char dynamic[];
  __shared__ ShortShared<S> shared;
  const unsigned base = (sharedAddress(dynamic) + 1023) & ~1023u;
  const unsigned key_base = base + S::kTile / kTaskRows * S::kQueryBytes, value_base = key_base + S::kKeyBytes;
  const int group = S::kWarpgroups == 1 ? 0 : uniform(threadIdx.x / kWarpgroup);
  const int lane = threadIdx.x % kWarpSize;
  if (threadIdx.x < 3) prefetchMap(maps.operand[threadIdx.x]);
  if (threadIdx.x == 0) {
    barrierInit(&shared.scores_ready, 1);
    barrierInit(&shared.values_ready, 1);
    fenceBarrierInit();
    fenceSharedForWgmma();
  }
  const int sequence = blockIdx.x / p.H, head = blockIdx.x % p.H;
  waitForPriorGrids();
  releaseNextGrid();
  const int begin = uniform(sequenceStart(p.cu_seqlens, sequence, p.T));
  if (sequence == p.B) {
    zeroFiller(p, begin);
    return;
  }
  const int length = uniform(sequenceStart(p.cu_seqlens, sequence + 1, p.T)) - begin;
  if (length <= 0) return;
  if (threadIdx.x < kWarpSize) loadTile<S>(maps, shared, base, head, begin, length, 0, 0);
  __syncthreads();

  const float scale_log2 = p.scale * kLog2E;
  int loaded_row = 0, loaded_key = 0;
  unsigned parity = 0;
  for (int first = 0; first < length; first += S::kWarpgroups * kTaskRows) {
    const int row = first + group * kTaskRows;
    const bool busy = row < length;
    const unsigned query = base + (S::kWarpgroups > 1 ? group : first / kTaskRows % (S::kTile / kTaskRows)) *
                                      S::kQueryBytes;
    Sm90Rows<S> rows;
    for (int key = 0; key < length; key += S::kKeys) {
      const int row_tile = first / S::kTile * S::kTile, key_tile = key / S::kTile * S::kTile;
      if (row_tile != loaded_row || key_tile != loaded_key) {
        __syncthreads();  // all have read what is overwritten
        if (threadIdx.x < kWarpSize) loadTile<S>(maps, shared, base, head, begin, length, row_tile, key_tile);
        loaded_row = row_tile;
        loaded_key = key_tile;
        parity ^= 1;
      }
      barrierWait(&shared.scores_ready, parity);
      if (p.q.bias && key == key_tile) addQueryBias<S>(p, sharedPointer<unsigned char>(query), head, group);
      const int in_tile = key - key_tile, keys = min(length - key, S::kKeys);
      const auto step = [&](auto count) {
        constexpr int kCount = decltype(count)::value;
        if (busy) {
          auto& scores = reinterpret_cast<float (&)[kCount / 8][4]>(rows.scores);
          const unsigned q = panelDescriptor(query), k = panelDescriptor(key_base + in_tile * kPanelRowBytes);
          wgmmaFence();
#pragma unroll
          for (int d = 0; d < S::kD / 16; ++d) {
            wgmmaShared<T>(scores, q + ((d / 4 * S::kQueryPanelBytes + d % 4 * 32) >> 4),
                           k + ((d / 4 * S::kKeyPanelBytes + d % 4 * 32) >> 4), d > 0);
          }
          wgmmaCommit();
          wgmmaWait<0>();
          if (keys < kCount) rows.template maskFrom<kCount>(keys, lane);
          rows.template weigh<kCount>(scale_log2);
        }
        barrierWait(&shared.values_ready, parity);
        if (keys < kCount) {
          unsigned char* const values = sharedPointer<unsigned char>(value_base + in_tile * kPanelRowBytes);
          for (int i = keys * 8 + threadIdx.x; i < kCount * 8; i += S::kThreads) {
#pragma unroll
            for (int panel = 0; panel < S::kPanels; ++panel) {
              *reinterpret_cast<uint4*>(values + panel * S::kKeyPanelBytes + i * 16) = uint4{};
            }
          }
          fenceSharedForWgmma();
          __syncthreads();
        }
        if (busy) {
          const unsigned v = panelDescriptor(value_base + in_tile * kPanelRowBytes);
          wgmmaFence();
#pragma unroll
          for (int n = 0; n < kCount / 16; ++n) {
#pragma unroll
            for (int panel = 0; panel < S::kPanels; ++panel) {
              wgmmaRegisters<T>(rows.output[panel], rows.weights[n],
                                v + ((panel * S::kKeyPanelBytes + n * 16 * kPanelRowBytes) >> 4));
            }
          }
          wgmmaCommit();
          wgmmaWait<0>();
        }
      };
      if (S::kKeys > 64 && keys <= 64) {
        step(Keys<64>{});
      } else {
        step(Keys<S::kKeys>{});
      }
    }
    if (busy) {
      rows.addUpSums();
      AttentionJob job;
      job.token = begin + row;
      job.rows = length - row;
      job.head = head;
      storeRows<S>(p, job, rows);
    }
  }
#endif
}

// An operand as [T, H, D], in boxes of kBoxRows tokens, one head and a panel's columns. Columns from D on arrive as
// zeros.
bool encode(const AttentionParams& params, const AttentionOperand& operand, CUtensorMap& map) {
  const auto size = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const int64_t element = sizeOf(params.type);
  return encodeBoxes<3>(map, params.type, operand.data, {size(params.D), size(params.H), size(params.T)},
                        {size(operand.head_stride * element), size(operand.token_stride * element)},
                        {kPanelColumns, 1, kBoxRows}, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

template <typename S>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  ShortMaps maps;
  const AttentionOperand* const operands[] = {&params.q, &params.k, &params.v};
  for (int i = 0; i < 3; ++i) {
    if (!encode(params, *operands[i], maps.operand[i])) return cudaErrorInvalidValue;
  }
  const auto kernel = attentionSm90ShortKernel<S>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (status != cudaSuccess) return status;
  return launchDependent(kernel, dim3((params.B + 1) * params.H), dim3(S::kThreads), S::kSharedBytes, stream, params,
                         maps);
}

}  // namespace

template <typename T>
cudaError_t choose(const AttentionParams& p, int variant, cudaStream_t stream) {
  switch (variant) {
    case 0: return launch<ShortShape<T, 64, 64, 64, 1, 5>>(p, stream);
    case 1: return launch<ShortShape<T, 64, 128, 64, 1, 4>>(p, stream);
    case 2: return launch<ShortShape<T, 64, 128, 64, 2, 2>>(p, stream);
    case 3: return launch<ShortShape<T, 64, 128, 128, 1, 3>>(p, stream);
    case 4: return launch<ShortShape<T, 64, 128, 128, 2, 1>>(p, stream);
    case 5: return launch<ShortShape<T, 128, 128, 64, 2, 2>>(p, stream);
    case 6: return launch<ShortShape<T, 128, 128, 128, 1, 2>>(p, stream);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t launchAttentionSm90Short(const AttentionParams& params, int variant, cudaStream_t stream) {
  return params.type == DataType::kFloat16 ? choose<half>(params, variant, stream)
                                           : choose<__nv_bfloat16>(params, variant, stream);
}

}  // namespace padfree
