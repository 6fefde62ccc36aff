// SPDX-License-Identifier: Apache-2.0
// Variable-length attention on tensor cores for heads whose rows fill the registers: queries stay in shared memory, and
// K and V have one buffer each, of 64 keys. The keys of the next step arrive while values are multiplied, and the
// values of a step while its scores are made. mma_kernel.cuh has what both kernels share.
#pragma once

#include <type_traits>

#include "attention/kernels.h"
#include "attention/mma_rows.cuh"
#include "attention/mma_scores.cuh"
#include "attention/mma_store.cuh"
#include "attention/mma_tiles.cuh"
#include "attention/query_tiles.cuh"
#include "attention/row_copier.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

template <int kHeadSize_, int kFragments_, int kKeys_, int kBlocks_, class Adjust_>
struct WideShape {
  using Adjust = Adjust_;
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kFragments = kFragments_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kThreads = 4 * kWarpSize;
  static constexpr int kWarpRows = kFragments * 16;
  static constexpr int kRows = 4 * kWarpRows;
  static constexpr int kStride = kHeadSize + kRowPad;
  static constexpr int kSharedElements = (2 * kKeys + kRows) * kStride;
  // Whether a block first asks the L2 cache for the keys and values of its own rows, and has fewer instructions before
  // and after the products, and one copy of those with values; where this was measured.
  static constexpr bool kBrief = std::is_same_v<Adjust, PlainScores>;
  // Beside products; more of them, of rows this long, would keep the other block's ldmatrix waiting.
  static constexpr int kCopiesAtOnce = kHeadSize > 128 ? 1 : kKeys;
};

// Starts the copies of a tile's queries and first keys, in one group, and those of its first values, in another.
template <class S, class Copier, typename T>
__device__ void copyBeginning(const Copier& copier, const Copier& kv_copier, T* shared_q, T* shared_k, T* shared_v,
                              const AttentionParams& p, const QueryTile& tile, const KeyRange& range) {
  const int first = tile.begin + range.begin, keys = range.end - range.begin;
  if constexpr (S::kBrief) {
    copier.template copyBriefly<S::kRows>(shared_q, p.q, tile.begin + tile.first, tile.rows);
  } else {
    copier.template copyAll<S::kRows>(shared_q, p.q, tile.begin + tile.first, tile.rows);
  }
  kv_copier.template copyAll<S::kKeys>(shared_k, p.k, first, keys);
  commitCopies();
  kv_copier.template copyAll<S::kKeys>(shared_v, p.v, first, keys);
  commitCopies();
  if (!S::kBrief || range.end <= 2 * S::kKeys) return;
  kv_copier.prefetch(p.k, tile.begin + tile.first, tile.rows);  // the other blocks of the sequence need them later
  kv_copier.prefetch(p.v, tile.begin + tile.first, tile.rows);
}

// Scores of a step where `sees`, and the references that they move.
template <class S, class Rows, typename T>
__device__ void scoreStep(Rows& rows, typename Rows::Scores& scores, const T* k, int keys, bool sees,
                          const typename S::Adjust& adjust, int first_row, int first) {
  if (sees && keys < S::kKeys) {
    rows.template scoreKeys<true>(scores, k, keys, adjust, first_row, first);
    if (!S::kBrief) rows.moveShifts(scores, adjust.factor());
  } else if (sees) {
    rows.template scoreKeys<false>(scores, k, keys, adjust, first_row, first);
    if (!S::kBrief) rows.moveShifts(scores, adjust.factor());
  }
  if (S::kBrief && sees) rows.moveShifts(scores, adjust.factor());
}

template <class S, class Rows, typename Result, typename T>
__device__ void storeRows(Rows& rows, Result* y, int64_t stride, int count, const T* bias, const AttentionParams& p) {
  if constexpr (S::kBrief) {
    float totals[S::kFragments][2];
    rows.totalAll(totals);
    rows.store(y, stride, count, bias, p.D, totals, p.e4m3_factor);
  } else {
    rows.storeOutput(y, stride, count, bias, p.D, p.e4m3_factor);
  }
}

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) attentionWideKernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared_k = reinterpret_cast<T*>(shared_bytes);
  T* const shared_v = shared_k + S::kKeys * S::kStride;
  T* const shared_q = shared_v + S::kKeys * S::kStride;

  if (!p.early_lengths) waitForPriorGrids();
  const BlockWork work = workOf<S>(p);
  const int head = work.head;
  const QueryTile tile = tileOf<S>(p, work.tile);
  waitForPriorGrids();
  releaseNextGrid();
  if (tile.rows <= 0) return;
  const int64_t y_stride = static_cast<int64_t>(p.H) * p.D;
  Result* const y = static_cast<Result*>(p.y) + (tile.begin + tile.first) * y_stride + head * p.D;
  if (tile.filler) return zeroRows<S::kThreads>(y, y_stride, p.D, tile.rows);

  const KeyRange range = S::Adjust::keys(p, tile.first, tile.first + tile.rows - 1, tile.length);
  const int kv_head = p.kv_heads == p.H ? head : head / (p.H / p.kv_heads);  // divisions take a while
  const RowCopier<T, S::kHeadSize, S::kThreads> copier(head, p.D), kv_copier(kv_head, p.D);
  const auto load = [&](T* target, const AttentionOperand& operand, int first) {
    if (first < range.end) {
      kv_copier.template copyAll<S::kKeys, S::kCopiesAtOnce>(target, operand, tile.begin + first, range.end - first);
    }
    commitCopies();
  };
  copyBeginning<S>(copier, kv_copier, shared_q, shared_k, shared_v, p, tile, range);

  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * S::kWarpRows;
  const bool has_rows = warp_row < tile.rows;  // a warp without rows only helps to copy
  const int first_row = tile.first + warp_row;
  const typename S::Adjust adjust(p, head);
  using Rows = WarpRows<T, S::kHeadSize, S::kFragments, S::kKeys, S::kStride, typename S::Adjust, true, false>;
  std::conditional_t<S::kBrief, StoredRows<Rows, S::kFragments, S::kHeadSize / 8>, Rows> rows;
  rows.begin(shared_q + warp_row * S::kStride, nullptr, p.D);
  if (const T* const bias = S::kBrief ? biasOf<T>(p.q, head) : nullptr) {
    waitCopies<1>();
    copier.template add<S::kRows>(shared_q, bias);
  }
  for (int first = range.begin; first < range.end; first += S::kKeys) {
    const bool starts = first == range.begin;  // whose values are under way
    if (starts) {
      waitCopies<1>();
    } else {
      waitCopies<0>();
    }
    if constexpr (!S::kBrief) {
      const T* const bias = biasOf<T>(p.q, head);
      if (bias && starts) copier.template add<S::kRows>(shared_q, bias);
    }
    __syncthreads();  // keys are there, and every warp is done with the values before
    if (!starts) load(shared_v, p.v, first);
    const int keys = range.end - first;
    const bool sees = has_rows && adjust.seesAny(first_row, first_row + S::kWarpRows - 1, first, S::kKeys);
    typename Rows::Scores scores;
    scoreStep<S>(rows, scores, shared_k, keys, sees, adjust, first_row, first);
    waitCopies<0>();
    __syncthreads();  // values are there, and every warp is done with the keys
    load(shared_k, p.k, first + S::kKeys);
    if (!S::kBrief && sees && keys < S::kKeys) {
      rows.template addValues<true>(scores, shared_v, keys, adjust.factor());
    } else if (sees) {
      rows.template addValues<false>(scores, shared_v, keys, adjust.factor());
    }
  }
  if (!has_rows) return;
  storeRows<S>(rows, y + warp_row * y_stride, y_stride, tile.rows - warp_row, biasOf<T>(p.v, kv_head), p);
}

template <typename T, class S>
cudaError_t launchWide(const AttentionParams& params, cudaStream_t stream) {
  static_assert(S::kRows >= kTaskRows, "attentionBlocks counts on it");
  constexpr int kBytes = S::kSharedElements * static_cast<int>(sizeof(T));
  static_assert(kBytes <= 99 * 1024, "sm_86, sm_89 and sm_120 give a block 99 KB");
  const auto kernel = params.e4m3_factor > 0.f ? attentionWideKernel<T, S, E4m3> : attentionWideKernel<T, S, T>;
  const unsigned blocks = countQueryTiles(params.T, params.B, S::kRows) * params.H;
  const dim3 grid = S::kBrief ? tileGrid(params, S::kRows) : dim3(blocks);
  return launchWithSharedMemory(kernel, grid, S::kThreads, kBytes, stream, params);
}

}  // namespace
}  // namespace padfree
