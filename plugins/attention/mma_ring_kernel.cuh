// SPDX-License-Identifier: Apache-2.0
// Variable-length attention on tensor cores for tall tiles of heads whose rows fill the registers, with a window:
// queries stay in shared memory, as in mma_wide_kernel.cuh, but K and V have two stages, so that a step has one
// barrier, and its copies the time of a whole step to arrive. mma_choice.h says where this was faster.
#pragma once

#include "attention/kernels.h"
#include "attention/mma_rows.cuh"
#include "attention/mma_store.cuh"
#include "attention/mma_tiles.cuh"
#include "attention/row_copier.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

template <int kHeadSize_, int kFragments_, int kKeys_, int kBlocks_, class Adjust_>
struct RingShape {
  using Adjust = Adjust_;
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kFragments = kFragments_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kThreads = 4 * kWarpSize;
  static constexpr int kWarpRows = kFragments * 16;
  static constexpr int kRows = 4 * kWarpRows;
  static constexpr int kStride = kHeadSize + kRowPad;
  static constexpr int kStageElements = 2 * kKeys * kStride;  // K, then V
  static constexpr int kSharedElements = 2 * kStageElements + kRows * kStride;
};

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) attentionRingKernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared_kv = reinterpret_cast<T*>(shared_bytes);
  T* const shared_q = shared_kv + 2 * S::kStageElements;

  if (!p.early_lengths) waitForPriorGrids();
  const BlockWork work = blockWork(p);
  const int head = work.head;
  const QueryTile tile = findTile<S::kRows>(p, work.tile);
  waitForPriorGrids();
  releaseNextGrid();
  if (tile.rows <= 0) return;
  const int64_t y_stride = static_cast<int64_t>(p.H) * p.D;
  Result* const y = static_cast<Result*>(p.y) + (tile.begin + tile.first) * y_stride + head * p.D;
  if (tile.filler) return zeroRows<S::kThreads>(y, y_stride, p.D, tile.rows);

  const KeyRange range = S::Adjust::keys(p, tile.first, tile.first + tile.rows - 1, tile.length);
  const int kv_head = p.kv_heads == p.H ? head : head / (p.H / p.kv_heads);  // divisions take a while
  const RowCopier<T, S::kHeadSize, S::kThreads> copier(head, p.D), kv_copier(kv_head, p.D);
  const auto load = [&](T* stage, int first) {
    const int keys = range.end - first;
    if (keys > 0) {
      kv_copier.template copyBriefly<S::kKeys>(stage, p.k, tile.begin + first, keys);
      kv_copier.template copyBriefly<S::kKeys>(stage + S::kKeys * S::kStride, p.v, tile.begin + first, keys);
    }
    commitCopies();
  };
  copier.template copyBriefly<S::kRows>(shared_q, p.q, tile.begin + tile.first, tile.rows);
  load(shared_kv, range.begin);

  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * S::kWarpRows;
  const bool has_rows = warp_row < tile.rows;  // a warp without rows only helps to copy
  const int first_row = tile.first + warp_row;
  const typename S::Adjust adjust(p, head);
  using Rows = WarpRows<T, S::kHeadSize, S::kFragments, S::kKeys, S::kStride, typename S::Adjust, true, false>;
  StoredRows<Rows, S::kFragments, S::kHeadSize / 8> rows;
  rows.begin(shared_q + warp_row * S::kStride, nullptr, p.D);
  int stage = 0;
  for (int first = range.begin; first < range.end; first += S::kKeys) {
    waitCopies<0>();
    const T* const bias = biasOf<T>(p.q, head);
    if (bias && first == range.begin) copier.template add<S::kRows>(shared_q, bias);
    __syncthreads();  // keys and values are there, and every warp is done with those before
    const T* const k = shared_kv + stage * S::kStageElements;
    const T* const v = k + S::kKeys * S::kStride;
    stage = 1 - stage;
    load(shared_kv + stage * S::kStageElements, first + S::kKeys);
    const int keys = range.end - first;
    if (!has_rows || !adjust.seesAny(first_row, first_row + S::kWarpRows - 1, first, S::kKeys)) continue;
    if (keys < S::kKeys) {
      rows.template step<true>(k, v, keys, adjust, first_row, first);
    } else {
      rows.template step<false>(k, v, keys, adjust, first_row, first);
    }
  }
  if (!has_rows) return;
  float totals[S::kFragments][2];
  rows.totalAll(totals);
  rows.store(y + warp_row * y_stride, y_stride, tile.rows - warp_row, biasOf<T>(p.v, kv_head), p.D, totals,
             p.e4m3_factor);
}

// The shared memory of a block, in bytes.
template <typename T, class S>
constexpr int ringBytes() {
  constexpr int kBytes = S::kSharedElements * static_cast<int>(sizeof(T));
  static_assert(S::kRows >= kTaskRows, "attentionBlocks counts on it");
  static_assert(kBytes <= 99 * 1024, "sm_86, sm_89 and sm_120 give a block 99 KB");
  return kBytes;
}

template <typename T, class S>
cudaError_t launchRing(const AttentionParams& params, cudaStream_t stream) {
  const auto kernel = params.e4m3_factor > 0.f ? attentionRingKernel<T, S, E4m3> : attentionRingKernel<T, S, T>;
  return launchWithSharedMemory(kernel, tileGrid(params, S::kRows), S::kThreads, ringBytes<T, S>(), stream, params);
}

}  // namespace
}  // namespace padfree
