// SPDX-License-Identifier: Apache-2.0
// Variable-length attention on mma.sync for heads of which a warp can keep only 16 rows: two warps share rows. Each
// makes the scores of half of a step's keys and the output of half of the head's columns, so that a row's output takes
// half as many registers in a warp, and rows of K and V are read from shared memory by half as many warps. Largest
// scores and weights pass through shared memory. mma_wide_kernel.cuh has the schedule, mma_rows.cuh what both kernels
// share.
#pragma once

#include <type_traits>

#include "attention/kernels.h"
#include "attention/mma_rows.cuh"
#include "attention/mma_store.cuh"
#include "attention/mma_tiles.cuh"
#include "attention/row_copier.cuh"
#include "common/dependent_launch.cuh"
#include "common/ptx/barriers.cuh"

namespace padfree {
namespace {

// kPairs: pairs of warps. kBlocks: blocks per multiprocessor, which bound the registers.
template <int kHeadSize_, int kFragments_, int kPairs_, int kKeys_, int kBlocks_, class Adjust_>
struct PairShape {
  using Adjust = Adjust_;
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kFragments = kFragments_;
  static constexpr int kPairs = kPairs_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kThreads = 2 * kPairs * kWarpSize;
  static constexpr int kWarpRows = kFragments * 16;
  static constexpr int kRows = kPairs * kWarpRows;
  static constexpr int kStride = kHeadSize + kRowPad;
  static constexpr int kWeightStride = kKeys + kRowPad;
  // K, V, Q and weights of 2 bytes, and peaks of both halves.
  static constexpr int kBytes =
      ((2 * kKeys + kRows) * kStride + kRows * kWeightStride) * 2 + 2 * kRows * static_cast<int>(sizeof(float));
  // In so many parts the next values are copied beside products with keys, and the next keys beside those with values.
  static constexpr int kKeyParts = kHeadSize / 16, kValueParts = kKeys / 4;
  // In twos: ptxas puts three dead loads before each group of copies.
  static constexpr int kCopiesTogether = 2;
  // Whether a block asks the L2 cache for the keys and values of its own rows, which other blocks of the sequence need
  // later: where tiles are few, so that memory has nothing else to do.
  static constexpr bool kAhead = kFragments == 1;
};

template <typename T, class S>
using PairBase = StoredRows<WarpRows<T, S::kHeadSize, S::kFragments, S::kKeys / 2, S::kStride, typename S::Adjust, true,
                                     false, S::kHeadSize / 2>,
                            S::kFragments, S::kHeadSize / 16>;

// The rows of a pair in one of its warps, `half` 0 or 1.
template <typename T, class S>
class PairRows : public PairBase<T, S> {
 public:
  using Base = PairBase<T, S>;
  using Scores = typename Base::Scores;

  // weights: the pair's rows of them in shared memory. peaks: [2][rows] there.
  __device__ PairRows(int pair, int half, T* weights, float* peaks)
      : barrier_(1 + pair), half_(half), weights_(weights), peaks_(peaks) {}

  // Leaves the weights of this warp's half of a step's keys in shared memory, and its scores to the caller.
  template <bool kMasked, class Between>
  __device__ void weighKeys(Scores& scores, const T* k, int keys, const typename S::Adjust& adjust, int first_row,
                            int first_key, const Between& between) {
    const int offset = half_ * (S::kKeys / 2);
    Base::template multiplyQueries<kMasked>(scores, k + offset * S::kStride, keys - offset, between);
    adjust.adjust(scores, first_row, first_key + offset);
    moveSharedShifts(scores, adjust.factor());
    storeWeights(scores, adjust.factor());
  }

  // output += weights v in this warp's half of the columns.
  template <bool kMasked, class Between = Nothing>
  __device__ void addValues(const T* v, int keys, const Between& between = {}) {
    const T* const row = v + lane_ % 16 * S::kStride + lane_ / 16 * 8 + half_ * (S::kHeadSize / 2);
    const T* const weight_row = weights_ + lane_ % 16 * S::kWeightStride + lane_ / 16 * 8;
#pragma unroll
    for (int n = 0; n < S::kKeys; n += 16) {
      if (kMasked && n == S::kKeys / 2 && keys <= S::kKeys / 2) break;
      unsigned weights[S::kFragments][4];
#pragma unroll
      for (int f = 0; f < S::kFragments; ++f) {
        loadMatrices(weights[f], weight_row + f * 16 * S::kWeightStride + n);
      }
      Base::multiplyValues(weights, row + n * S::kStride, [&](int quarter) { between(n / 4 + quarter); });
    }
  }

  // Stores the output of this warp's half of the columns, as WarpRows::storeOutput does.
  template <typename Result>
  __device__ void finish(Result* y, int64_t stride, int rows, const T* bias, int D, float factor) {
    typename Base::Totals totals;
    Base::totalAll(totals);
    exchange(totals, [](float first, float second) { return first + second; });
    Base::store(y, stride, rows, bias, D, totals, factor);
  }

 private:
  template <class Function>
  __device__ static void forRows(const Function& function) {
#pragma unroll
    for (int f = 0; f < S::kFragments; ++f) {
#pragma unroll
      for (int part = 0; part < 2; ++part) function(f, part);
    }
  }

  // Moves the references of rows that need it, with what both warps know.
  __device__ void moveSharedShifts(const Scores& scores, float factor) {
    typename Base::RowValues peaks;
    forRows([&](int f, int part) { peaks[f][part] = Base::largestOfLanes(Base::peakOf(scores[f], part)); });
    exchange(peaks, [](float first, float second) { return fmaxf(first, second); });
    bool moves = false;
    forRows([&](int f, int part) { moves = moves || Base::exceeds(peaks[f][part], f, part, factor); });
    if (__any_sync(kFullMask, moves)) {
      forRows([&](int f, int part) { Base::moveShift(peaks[f][part], f, part, factor); });
    }
  }

  __device__ void storeWeights(const Scores& scores, float factor) {
    T* const row = weights_ + lane_ / 4 * S::kWeightStride + half_ * (S::kKeys / 2) + lane_ % 4 * 2;
#pragma unroll
    for (int f = 0; f < S::kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < S::kKeys / 16; ++n) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          *reinterpret_cast<unsigned*>(row + (f * 16 + part * 8) * S::kWeightStride + n * 8) =
              Base::weigh(scores[f][n], f, part, factor);
        }
      }
    }
  }

  // value = join(that of the first warp, that of the second), for each row.
  template <class Join>
  __device__ void exchange(float (&values)[S::kFragments][2], const Join& join) const {
    float* const mine = peaks_ + half_ * S::kWarpRows + lane_ / 4;
    forRows([&](int f, int part) {
      if (lane_ % 4 == 0) mine[f * 16 + part * 8] = values[f][part];
    });
    namedBarrier(barrier_, 2 * kWarpSize);
    const float* const both = peaks_ + lane_ / 4;
    forRows([&](int f, int part) {
      values[f][part] = join(both[f * 16 + part * 8], both[S::kWarpRows + f * 16 + part * 8]);
    });
  }

  const int lane_ = threadIdx.x % kWarpSize;
  const int barrier_, half_;
  T* const weights_;
  float* const peaks_;
};

// The keys of the first step, for which queries are under way as well. Its values, like those of other steps, are
// copied beside products with keys: until then they would only delay what other blocks wait for.
template <class S, class Copier, typename T>
__device__ void copyFirst(const Copier& copier, T* shared_k, const AttentionParams& p, const QueryTile& tile,
                          const KeyRange& range) {
  const int keys = range.end - range.begin;
  copier.template copyBriefly<S::kKeys>(shared_k, p.k, tile.begin + range.begin, keys);
  commitCopies();
  if (!S::kAhead || keys <= S::kKeys) return;
  copier.prefetch(p.k, tile.begin + tile.first, tile.rows);
  copier.prefetch(p.v, tile.begin + tile.first, tile.rows);
}

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) attentionPairKernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared_k = reinterpret_cast<T*>(shared_bytes);
  T* const shared_v = shared_k + S::kKeys * S::kStride;
  T* const shared_q = shared_v + S::kKeys * S::kStride;
  T* const shared_weights = shared_q + S::kRows * S::kStride;
  float* const shared_peaks = reinterpret_cast<float*>(shared_weights + S::kRows * S::kWeightStride);

  if (!p.early_lengths) waitForPriorGrids();
  const BlockWork work = blockWork(p);
  const int head = work.head;
  const QueryTile tile = findTile<S::kRows>(p, turnTile(p, work.tile));
  waitForPriorGrids();
  releaseNextGrid();
  if (tile.rows <= 0) return;
  const int64_t y_stride = static_cast<int64_t>(p.H) * p.D;
  Result* const y = static_cast<Result*>(p.y) + (tile.begin + tile.first) * y_stride + head * p.D;
  if (tile.filler) return zeroRows<S::kThreads>(y, y_stride, p.D, tile.rows);

  const KeyRange range = S::Adjust::keys(p, tile.first, tile.first + tile.rows - 1, tile.length);
  const int kv_head = p.kv_heads == p.H ? head : head / (p.H / p.kv_heads);  // divisions take a while
  const RowCopier<T, S::kHeadSize, S::kThreads> copier(head, p.D), kv_copier(kv_head, p.D);
  copier.template copyBriefly<S::kRows>(shared_q, p.q, tile.begin + tile.first, tile.rows);
  copyFirst<S>(kv_copier, shared_k, p, tile, range);

  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, pair = warp / 2, half = warp % 2;
  const int pair_row = pair * S::kWarpRows;
  const bool has_rows = pair_row < tile.rows;  // a pair without rows only helps to copy
  const int first_row = tile.first + pair_row;
  const typename S::Adjust adjust(p, head);
  PairRows<T, S> rows(pair, half, shared_weights + pair_row * S::kWeightStride, shared_peaks + 2 * pair_row);
  rows.begin(shared_q + pair_row * S::kStride, nullptr, p.D);
  for (int first = range.begin; first < range.end; first += S::kKeys) {
    waitCopies<0>();
    const T* const bias = biasOf<T>(p.q, head);
    if (bias && first == range.begin) copier.template add<S::kRows>(shared_q, bias);
    __syncthreads();  // keys are there, and every warp is done with the values and weights before
    const int keys = range.end - first;
    const auto copyValues = kv_copier.template inParts<S::kKeys, S::kKeyParts, S::kCopiesTogether>(
        shared_v, p.v, tile.begin + first, keys, true);
    const auto copyKeys = kv_copier.template inParts<S::kKeys, S::kValueParts, S::kCopiesTogether>(
        shared_k, p.k, tile.begin + first + S::kKeys, keys - S::kKeys, keys > S::kKeys);
    const bool sees = has_rows && adjust.seesAny(first_row, first_row + S::kWarpRows - 1, first, S::kKeys);
    typename PairRows<T, S>::Scores scores;
    if (sees && keys < S::kKeys) {
      rows.template weighKeys<true>(scores, shared_k, keys, adjust, first_row, first, copyValues);
    } else if (sees) {
      rows.template weighKeys<false>(scores, shared_k, keys, adjust, first_row, first, copyValues);
    } else {
      callParts<S::kKeyParts>(copyValues);
    }
    commitCopies();
    waitCopies<0>();
    __syncthreads();                // values and weights are there, and every warp is done with the keys
    if (sees && keys < S::kKeys) {  // the last step
      rows.template addValues<true>(shared_v, keys);
    } else if (sees) {
      rows.template addValues<false>(shared_v, keys, copyKeys);
    } else {
      callParts<S::kValueParts>(copyKeys);
    }
    commitCopies();
  }
  if (!has_rows) return;
  const int column = half * (S::kHeadSize / 2);
  const T* const bias = biasOf<T>(p.v, kv_head);
  rows.finish(y + pair_row * y_stride + column, y_stride, tile.rows - pair_row, bias ? bias + column : nullptr,
              p.D - column, p.e4m3_factor);
}

template <typename T, class S>
cudaError_t launchPair(const AttentionParams& params, cudaStream_t stream) {
  const auto kernel = params.e4m3_factor > 0.f ? attentionPairKernel<T, S, E4m3> : attentionPairKernel<T, S, T>;
  return launchWithSharedMemory(kernel, tileGrid(params, S::kRows), S::kThreads, S::kBytes, stream, params);
}

}  // namespace
}  // namespace padfree
