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
#include "attention/query_tiles.cuh"
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
};

// The rows of a pair in one of its warps, `half` 0 or 1.
template <typename T, class S>
class PairRows : public WarpRows<T, S::kHeadSize, S::kFragments, S::kKeys / 2, S::kStride, typename S::Adjust, true,
                                 false, S::kHeadSize / 2> {
 public:
  using Base = WarpRows<T, S::kHeadSize, S::kFragments, S::kKeys / 2, S::kStride, typename S::Adjust, true, false,
                        S::kHeadSize / 2>;

  // weights: the pair's rows of them in shared memory. peaks: [2][rows] there.
  __device__ PairRows(int pair, int half, T* weights, float* peaks)
      : barrier_(1 + pair), half_(half), weights_(weights), peaks_(peaks) {}

  // Leaves the weights of this warp's half of a step's keys in shared memory.
  template <bool kMasked, class Between>
  __device__ void weighKeys(const T* k, int keys, const typename S::Adjust& adjust, int first_row, int first_key,
                            const Between& between) {
    const int offset = half_ * (S::kKeys / 2);
    typename Base::Scores scores;
    Base::template multiplyQueries<kMasked>(scores, k + offset * S::kStride, keys - offset, between);
    adjust.adjust(scores, first_row, first_key + offset);
    typename Base::RowValues peaks;
    forRows([&](int f, int part) { peaks[f][part] = Base::largestOfLanes(Base::peakOf(scores[f], part)); });
    exchange(peaks, [](float mine, float other) { return fmaxf(mine, other); });
    bool moves = false;
    forRows([&](int f, int part) { moves = moves || Base::exceeds(peaks[f][part], f, part, adjust.factor()); });
    if (__any_sync(kFullMask, moves)) {
      forRows([&](int f, int part) { Base::moveShift(peaks[f][part], f, part, adjust.factor()); });
    }
    T* const row = weights_ + lane_ / 4 * S::kWeightStride + offset + lane_ % 4 * 2;
#pragma unroll
    for (int f = 0; f < S::kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < S::kKeys / 16; ++n) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          *reinterpret_cast<unsigned*>(row + (f * 16 + part * 8) * S::kWeightStride + n * 8) =
              Base::weigh(scores[f][n], f, part, adjust.factor());
        }
      }
    }
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

  // Makes the sums of weights those of both halves, as far as storeOutput is concerned.
  __device__ void joinSums() {
    typename Base::RowValues sums;
    forRows([&](int f, int part) {
      float& sum = sums[f][part];
      sum = Base::sum_[f][part];
      sum += __shfl_xor_sync(kFullMask, sum, 1);
      sum += __shfl_xor_sync(kFullMask, sum, 2);
    });
    exchange(sums, [](float mine, float other) { return mine + other; });
    forRows([&](int f, int part) { Base::sum_[f][part] = lane_ % 4 == 0 ? sums[f][part] : 0.f; });
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

  // value = join(value, that of the other warp), for each row.
  template <class Join>
  __device__ void exchange(typename Base::RowValues& values, const Join& join) const {
    float* const mine = peaks_ + half_ * S::kWarpRows + lane_ / 4;
    const float* const other = peaks_ + (1 - half_) * S::kWarpRows + lane_ / 4;
    forRows([&](int f, int part) {
      if (lane_ % 4 == 0) mine[f * 16 + part * 8] = values[f][part];
    });
    namedBarrier(barrier_, 2 * kWarpSize);
    forRows([&](int f, int part) { values[f][part] = join(values[f][part], other[f * 16 + part * 8]); });
  }

  const int lane_ = threadIdx.x % kWarpSize;
  const int barrier_, half_;
  T* const weights_;
  float* const peaks_;
};

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) attentionPairKernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared_k = reinterpret_cast<T*>(shared_bytes);
  T* const shared_v = shared_k + S::kKeys * S::kStride;
  T* const shared_q = shared_v + S::kKeys * S::kStride;
  T* const shared_weights = shared_q + S::kRows * S::kStride;
  float* const shared_peaks = reinterpret_cast<float*>(shared_weights + S::kRows * S::kWeightStride);

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
  copier.template copyAll<S::kRows>(shared_q, p.q, tile.begin + tile.first, tile.rows);
  kv_copier.template copyAll<S::kKeys>(shared_k, p.k, tile.begin + range.begin, range.end - range.begin);
  commitCopies();
  kv_copier.template copyAll<S::kKeys>(shared_v, p.v, tile.begin + range.begin, range.end - range.begin);
  commitCopies();
  // Blocks of one sequence read the same keys: each asks for those of its own rows, which others need later.
  kv_copier.prefetch(p.k, tile.begin + tile.first, tile.rows);
  kv_copier.prefetch(p.v, tile.begin + tile.first, tile.rows);

  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, pair = warp / 2, half = warp % 2;
  const int pair_row = pair * S::kWarpRows;
  const bool has_rows = pair_row < tile.rows;  // a pair without rows only helps to copy
  const int first_row = tile.first + pair_row;
  const typename S::Adjust adjust(p, head);
  PairRows<T, S> rows(pair, half, shared_weights + pair_row * S::kWeightStride, shared_peaks + 2 * pair_row);
  rows.begin(shared_q + pair_row * S::kStride, nullptr, p.D);
  for (int first = range.begin; first < range.end; first += S::kKeys) {
    const bool starts = first == range.begin;  // whose values are under way
    if (starts) {
      waitCopies<1>();
    } else {
      waitCopies<0>();
    }
    const T* const bias = biasOf<T>(p.q, head);
    if (bias && starts) copier.template add<S::kRows>(shared_q, bias);
    __syncthreads();  // keys are there, and every warp is done with the values and weights before
    const int keys = range.end - first;
    const auto copyValues =
        kv_copier.template inParts<S::kKeys, S::kKeyParts>(shared_v, p.v, tile.begin + first, keys, !starts);
    const auto copyKeys = kv_copier.template inParts<S::kKeys, S::kValueParts>(
        shared_k, p.k, tile.begin + first + S::kKeys, keys - S::kKeys, keys > S::kKeys);
    const bool sees = has_rows && adjust.seesAny(first_row, first_row + S::kWarpRows - 1, first, S::kKeys);
    if (sees && keys < S::kKeys) {
      rows.template weighKeys<true>(shared_k, keys, adjust, first_row, first, copyValues);
    } else if (sees) {
      rows.template weighKeys<false>(shared_k, keys, adjust, first_row, first, copyValues);
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
  rows.joinSums();
  const int column = half * (S::kHeadSize / 2);
  const T* const bias = biasOf<T>(p.v, kv_head);
  rows.storeOutput(y + pair_row * y_stride + column, y_stride, tile.rows - pair_row, bias ? bias + column : nullptr,
                   p.D - column, p.e4m3_factor);
}

template <typename T, class S>
cudaError_t launchPair(const AttentionParams& params, cudaStream_t stream) {
  const auto kernel = params.e4m3_factor > 0.f ? attentionPairKernel<T, S, E4m3> : attentionPairKernel<T, S, T>;
  const unsigned blocks = countQueryTiles(params.T, params.B, S::kRows) * params.H;
  return launchWithSharedMemory(kernel, blocks, S::kThreads, S::kBytes, stream, params);
}

}  // namespace
}  // namespace padfree
