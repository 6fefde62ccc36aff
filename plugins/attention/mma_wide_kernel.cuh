// SPDX-License-Identifier: Apache-2.0
// Variable-length attention on tensor cores for heads whose rows fill the registers: queries stay in shared memory, and
// K and V have one buffer each, of 64 keys. The keys of the next step arrive while values are multiplied, and the
// values of a step while its scores are made. mma_kernel.cuh has what both kernels share.
#pragma once

#include <type_traits>

#include "attention/kernels.h"
#include "attention/mma_rows.cuh"
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
  // Beside products; more of them, of rows this long, would keep the other block's ldmatrix waiting.
  static constexpr int kCopiesAtOnce = kHeadSize > 128 ? 1 : kKeys;
};

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) attentionWideKernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared_k = reinterpret_cast<T*>(shared_bytes);
  T* const shared_v = shared_k + S::kKeys * S::kStride;
  T* const shared_q = shared_v + S::kKeys * S::kStride;

  if (!p.early_lengths) waitForPriorGrids();
  const int head = blockIdx.x % p.H;  // blocks that start together read whole rows of one sequence
  const QueryTile tile =
      findQueryTile<S::kRows>(p.cu_seqlens, p.B, p.T, blockIdx.x / p.H, p.longest_first, p.window_right == 0);
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
  copier.template copyAll<S::kRows>(shared_q, p.q, tile.begin + tile.first, tile.rows);
  kv_copier.template copyAll<S::kKeys>(shared_k, p.k, tile.begin + range.begin, range.end - range.begin);
  commitCopies();
  kv_copier.template copyAll<S::kKeys>(shared_v, p.v, tile.begin + range.begin, range.end - range.begin);
  commitCopies();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * S::kWarpRows;
  const bool has_rows = warp_row < tile.rows;  // a warp without rows only helps to copy
  const int first_row = tile.first + warp_row;
  const typename S::Adjust adjust(p, head);
  using Rows = WarpRows<T, S::kHeadSize, S::kFragments, S::kKeys, S::kStride, typename S::Adjust, true, false>;
  Rows rows;
  rows.begin(shared_q + warp_row * S::kStride, nullptr, p.D);
  for (int first = range.begin; first < range.end; first += S::kKeys) {
    const bool starts = first == range.begin;  // whose values are under way
    if (starts) {
      waitCopies<1>();
    } else {
      waitCopies<0>();
    }
    const T* const bias = biasOf<T>(p.q, head);
    if (bias && starts) copier.template add<S::kRows>(shared_q, bias);
    __syncthreads();  // keys are there, and every warp is done with the values before
    if (!starts) load(shared_v, p.v, first);
    const int keys = range.end - first;
    const bool sees = has_rows && adjust.seesAny(first_row, first_row + S::kWarpRows - 1, first, S::kKeys);
    typename Rows::Scores scores;
    if (sees && keys < S::kKeys) {
      rows.template stepKeys<true>(scores, shared_k, keys, adjust, first_row, first);
    } else if (sees) {
      rows.template stepKeys<false>(scores, shared_k, keys, adjust, first_row, first);
    }
    waitCopies<0>();
    __syncthreads();  // values are there, and every warp is done with the keys
    load(shared_k, p.k, first + S::kKeys);
    if (sees && keys < S::kKeys) {
      rows.template addValues<true>(scores, shared_v, keys, adjust.factor());
    } else if (sees) {
      rows.template addValues<false>(scores, shared_v, keys, adjust.factor());
    }
  }
  if (!has_rows) return;
  rows.storeOutput(y + warp_row * y_stride, y_stride, tile.rows - warp_row, biasOf<T>(p.v, kv_head), p.D,
                   p.e4m3_factor);
}

template <typename T, class S>
cudaError_t launchWide(const AttentionParams& params, cudaStream_t stream) {
  static_assert(S::kRows >= kTaskRows, "attentionBlocks counts on it");
  constexpr int kBytes = S::kSharedElements * static_cast<int>(sizeof(T));
  static_assert(kBytes <= 99 * 1024, "sm_86, sm_89 and sm_120 give a block 99 KB");
  const auto kernel = params.e4m3_factor > 0.f ? attentionWideKernel<T, S, E4m3> : attentionWideKernel<T, S, T>;
  const unsigned blocks = countQueryTiles(params.T, params.B, S::kRows) * params.H;
  return launchWithSharedMemory(kernel, blocks, S::kThreads, kBytes, stream, params);
}

}  // namespace
}  // namespace padfree
