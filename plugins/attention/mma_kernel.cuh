// SPDX-License-Identifier: Apache-2.0
// Variable-length attention on tensor cores for sm_80 and newer, in the manner of FlashAttention-2 (arXiv 2307.08691):
// a warp keeps the scores, the softmax and the output of its query rows in registers while K and V stream through
// two stages of shared memory. Rows that no sequence owns are never read.
//
// Biases cost no pass of their own: that of K shifts every score of a row by the same amount and leaves the softmax as
// it is, that of V is added to the output because the weights of a row sum to 1, that of Q is added to the fragments.
#pragma once

#include <type_traits>

#include "attention/kernels.h"
#include "attention/mma_ahead_kernel.cuh"
#include "attention/mma_choice.h"
#include "attention/mma_pair_kernel.cuh"
#include "attention/mma_ring_kernel.cuh"
#include "attention/mma_rows.cuh"
#include "attention/mma_store.cuh"
#include "attention/mma_tiles.cuh"
#include "attention/mma_wide_kernel.cuh"
#include "attention/query_tiles.cuh"
#include "attention/row_copier.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kStages = 2;

// Blocks with few registers hide each other's latency: four on a multiprocessor beat two with twice the rows where
// sequences are short. kBlocks: blocks per multiprocessor, which bound the registers. kBranches: rows that do not exist
// are skipped one by one and keys 16 by 16, which takes branches between copies and between products. kBrief: fewer
// instructions before and after the products; where this was measured.
template <int kHeadSize_, int kFragments_, int kKeys_, int kBlocks_, class Adjust_ = PlainScores,
          bool kBranches_ = false, bool kBrief_ = false>
struct Shape {
  using Adjust = Adjust_;
  static constexpr bool kBranches = kBranches_;
  static constexpr bool kBrief = kBrief_;
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kFragments = kFragments_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kWarpRows = kFragments * 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kStride = kHeadSize + kRowPad;
  // Whether copies go on from addresses that are kept, which takes fewer instructions per step; where this was
  // measured.
  static constexpr bool kKeepsPlace = kFragments_ == 2 && kHeadSize_ >= 64 && std::is_same_v<Adjust_, PlainScores>;
  static constexpr int kStageElements = 2 * kKeys * kStride;  // K, then V
  static constexpr int kSharedElements = kStages * kStageElements + kRows * kStride;
};

// Copies kRows rows as the shape wants it.
template <class S, int kRows, class Copier, typename T>
__device__ void copyRows(const Copier& copier, T* shared, const AttentionOperand& operand, int token, int valid) {
  if constexpr (S::kBrief) {
    copier.template copyBriefly<kRows>(shared, operand, token, valid);
  } else if constexpr (S::kBranches) {
    copier.template copy<kRows>(shared, operand, token, valid);
  } else {
    copier.template copyWhole<kRows>(shared, operand, token, valid);
  }
}

template <typename T, class S>
using MmaRows = WarpRows<T, S::kHeadSize, S::kFragments, S::kKeys, S::kStride, typename S::Adjust, false, S::kBranches>;

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(kThreads, S::kBlocks) attentionMmaKernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared_kv = reinterpret_cast<T*>(shared_bytes);
  T* const shared_q = shared_kv + kStages * S::kStageElements;

  if (!p.early_lengths) waitForPriorGrids();
  const BlockWork work = workOf<S>(p);
  const int head = work.head;
  const QueryTile tile = tileOf<S>(p, work.tile);
  waitForPriorGrids();
  releaseNextGrid();
  if (tile.rows <= 0) return;
  const int64_t y_stride = static_cast<int64_t>(p.H) * p.D;
  Result* const y = static_cast<Result*>(p.y) + (tile.begin + tile.first) * y_stride + head * p.D;
  if (tile.filler) return zeroRows<kThreads>(y, y_stride, p.D, tile.rows);

  const KeyRange range = S::Adjust::keys(p, tile.first, tile.first + tile.rows - 1, tile.length);
  const int kv_head =
      !S::kBranches && p.kv_heads == p.H ? head : head / (p.H / p.kv_heads);  // a division takes a while
  const RowCopier<T, S::kHeadSize, kThreads> copier(head, p.D), kv_copier(kv_head, p.D);
  [[maybe_unused]] const T* next_k = S::kKeepsPlace ? kv_copier.source(p.k, tile.begin + range.begin) : nullptr;
  [[maybe_unused]] const T* next_v = S::kKeepsPlace ? kv_copier.source(p.v, tile.begin + range.begin) : nullptr;
  const auto load = [&](T* stage, int first) {
    if (first < range.end) {
      if constexpr (S::kKeepsPlace) {
        copyNext<S::kKeys>(kv_copier, stage, p.k, next_k, range.end - first);
        copyNext<S::kKeys>(kv_copier, stage + S::kKeys * S::kStride, p.v, next_v, range.end - first);
      } else {
        copyRows<S, S::kKeys>(kv_copier, stage, p.k, tile.begin + first, range.end - first);
        copyRows<S, S::kKeys>(kv_copier, stage + S::kKeys * S::kStride, p.v, tile.begin + first, range.end - first);
      }
    }
    commitCopies();  // an empty group if nothing is left: waitCopies counts groups
  };
  copyRows<S, S::kRows>(copier, shared_q, p.q, tile.begin + tile.first, tile.rows);
#pragma unroll
  for (int i = 0; i < kStages; ++i) load(shared_kv + i * S::kStageElements, range.begin + i * S::kKeys);

  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * S::kWarpRows;
  const bool has_rows = warp_row < tile.rows;  // a warp without rows only helps to copy
  const int first_row = tile.first + warp_row;
  const typename S::Adjust adjust(p, head);
  std::conditional_t<S::kBrief, StoredRows<MmaRows<T, S>, S::kFragments, S::kHeadSize / 8>, MmaRows<T, S>> rows;
  int stage = 0;
  for (int first = range.begin; first < range.end; first += S::kKeys) {
    T* const k = shared_kv + stage * S::kStageElements;
    const T* const v = k + S::kKeys * S::kStride;
    waitCopies<kStages - 1>();
    __syncthreads();
    if (has_rows) {
      if (first == range.begin) rows.begin(shared_q + warp_row * S::kStride, biasOf<T>(p.q, head), p.D);
      const int keys = range.end - first;
      if (!adjust.seesAny(first_row, first_row + S::kWarpRows - 1, first, S::kKeys)) {
        // None of this warp's rows does, though one of the tile's may.
      } else if (keys < S::kKeys) {
        rows.template step<true>(k, v, keys, adjust, first_row, first);
      } else {
        rows.template step<false>(k, v, keys, adjust, first_row, first);
      }
    }
    __syncthreads();  // every warp is done with this stage
    load(k, first + kStages * S::kKeys);
    stage = S::kBrief ? 1 - stage : (stage + 1) % kStages;
  }
  if (!has_rows) return;
  if constexpr (S::kBrief) {
    float totals[S::kFragments][2];
    rows.totalAll(totals);
    rows.store(y + warp_row * y_stride, y_stride, tile.rows - warp_row, biasOf<T>(p.v, kv_head), p.D, totals,
               p.e4m3_factor);
  } else {
    rows.storeOutput(y + warp_row * y_stride, y_stride, tile.rows - warp_row, biasOf<T>(p.v, kv_head), p.D,
                     p.e4m3_factor);
  }
}

template <typename T, class S>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  static_assert(S::kRows >= kTaskRows, "attentionBlocks counts on it");
  constexpr int kBytes = S::kSharedElements * static_cast<int>(sizeof(T));
  static_assert(kBytes <= 99 * 1024, "sm_86, sm_89 and sm_120 give a block 99 KB");
  const auto kernel = params.e4m3_factor > 0.f ? attentionMmaKernel<T, S, E4m3> : attentionMmaKernel<T, S, T>;
  const unsigned blocks = countQueryTiles(params.T, params.B, S::kRows) * params.H;
  const dim3 grid = S::kBrief ? tileGrid(params, S::kRows) : dim3(blocks);
  return launchWithSharedMemory(kernel, grid, kThreads, kBytes, stream, params);
}

// The instances for biases and, in a library for Hopper alone, for everything that its own kernels leave.
template <typename T>
cudaError_t choosePositionedShape(const AttentionParams& params, cudaStream_t stream) {
  if constexpr (!kHopperAlone) {
    if (params.D <= 32) return launch<T, Shape<32, 1, 64, 4, PositionedScores, true>>(params, stream);
    if (params.D <= 64) return launch<T, Shape<64, 1, 64, 3, PositionedScores, true>>(params, stream);
  }
  if (params.D <= 128) return launch<T, Shape<128, 1, 32, 2, PositionedScores, true>>(params, stream);
  return launch<T, Shape<256, 1, 32, 1, PositionedScores, true>>(params, stream);
}

// The instances without a bias, chosen on an H200. Scores: PlainScores or WindowScores. Steps of the same number of
// keys keep the results of tall and ordinary tiles equal bit by bit.
template <typename T, class Scores>
cudaError_t chooseShape(const AttentionParams& params, bool tall, cudaStream_t stream) {
  constexpr bool kPlain = std::is_same_v<Scores, PlainScores>;
  if (params.D <= 32) {
    return (tall ? launch<T, Shape<32, 2, 64, 3, Scores>> : launch<T, Shape<32, 1, 64, 4, Scores>>)(params, stream);
  }
  if (params.D <= 64) {
    return (tall ? launch<T, Shape<64, 2, 64, 2, Scores>>
                 : launch<T, Shape<64, 1, 64, 4, Scores, false, kPlain>>)(params, stream);
  }
  if constexpr (kPlain) {
    if (tall && wantsScoresAhead(params)) {
      return (params.D <= 96 ? launchAhead<T, RingShape<96, 2, 32, 2, Scores>>
                             : launchAhead<T, RingShape<128, 2, 32, 2, Scores>>)(params, stream);
    }
    if (params.D <= 96) {
      return (tall ? launch<T, Shape<96, 2, 32, 2>> : launch<T, Shape<96, 1, 32, 3, PlainScores, false, true>>)(params,
                                                                                                                stream);
    }
  }
  if (!tall) return launch<T, Shape<128, 1, 32, 3, Scores, false, kPlain>>(params, stream);
  if constexpr (!kPlain) {
    if (wantsRing(params)) return launchRing<T, RingShape<128, 2, 32, 2, Scores>>(params, stream);
  }
  return launchWide<T, WideShape<128, 2, 32, 2, Scores>>(params, stream);
}

// The instances for heads of more than 128: pairs of warps where a block may have as much shared memory as they take.
template <typename T>
cudaError_t chooseLargeShape(AttentionParams params, int multiprocessors, cudaStream_t stream) {
  int available = 0, together = 0;
  cudaError_t status = deviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, available);
  if (status == cudaSuccess) status = deviceAttribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, together);
  if (status != cudaSuccess) return status;
  using Pairs = PairShape<256, 2, 2, 64, 2, WindowScores>;
  using HalfPairs = PairShape<256, 1, 2, 64, 2, WindowScores>;
  if (available < Pairs::kBytes) return launchWide<T, WideShape<256, 1, 64, 1, WindowScores>>(params, stream);
  // Half as many rows occupy multiprocessors that would be idle, and hold all rows of sequences that are as short. With
  // keys hidden on the left, a tile's first key depends on its first row, and a sequence's bits on the rows of tiles.
  const int64_t tiles = (static_cast<int64_t>(params.T / Pairs::kRows) + params.B) * params.H;
  const bool short_ones = params.max_seq_len > 0 && params.max_seq_len <= HalfPairs::kRows;
  const bool halves = params.window_left < 0 && (short_ones || tiles <= multiprocessors);
  constexpr int kReserved = 1024;  // bytes per block
  if (together >= 2 * (Pairs::kBytes + kReserved)) {
    turnSecondBlocks(params, halves ? HalfPairs::kRows : Pairs::kRows, multiprocessors);
  }
  return halves ? launchPair<T, HalfPairs>(params, stream) : launchPair<T, Pairs>(params, stream);
}

}  // namespace

template <typename T>
cudaError_t launchMma(const AttentionParams& given, cudaStream_t stream) {
  AttentionParams params = given;
  int multiprocessors = 0;
  if (const cudaError_t status = countMultiprocessors(multiprocessors)) return status;
  const bool tall = wantsTallTiles(params, multiprocessors);
  params.longest_first = wantsLongestFirst(params, tall);
  params.in_order = wantsTilesInOrder(params, tall);
  if (params.bias != AttentionBias::kNone) return choosePositionedShape<T>(params, stream);
  if constexpr (kHopperAlone) {  // calls without a bias come here only if they give no tasks
    return choosePositionedShape<T>(params, stream);
  } else {
    if (params.D > 128) return chooseLargeShape<T>(params, multiprocessors, stream);
    return hasPositions(params) ? chooseShape<T, WindowScores>(params, tall, stream)
                                : chooseShape<T, PlainScores>(params, tall, stream);
  }
}

}  // namespace padfree
