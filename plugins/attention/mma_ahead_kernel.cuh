// SPDX-License-Identifier: Apache-2.0
// Variable-length attention on tensor cores for tall tiles of rows that see all keys: the products of the next step's
// scores stand beside the exponentials of this one, so that tensor cores do not wait for them. K and V have two buffers
// each, as in mma_ring_kernel.cuh, but keys come a step before their values. A sequence's bits are those of other
// tiles.
#pragma once

#include "attention/kernels.h"
#include "attention/mma_ring_kernel.cuh"
#include "attention/mma_rows.cuh"
#include "attention/mma_store.cuh"
#include "attention/mma_tiles.cuh"
#include "attention/row_copier.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

template <typename T, class S>
using AheadBase = StoredRows<WarpRows<T, S::kHeadSize, S::kFragments, S::kKeys, S::kStride, PlainScores, true, false>,
                             S::kFragments, S::kHeadSize / 8>;

template <typename T, class S>
class AheadRows : public AheadBase<T, S> {
 public:
  using Base = AheadBase<T, S>;
  using Scores = typename Base::Scores;

  explicit __device__ AheadRows(float factor) : factor_(factor) {}

  // The scores of the first `keys` keys, and the references that they move.
  __device__ void score(Scores& scores, const T* k, int keys) {
    if (keys < S::kKeys) {
      Base::template multiplyQueries<true>(scores, k, keys);
    } else {
      Base::template multiplyQueries<false>(scores, k, keys);
    }
    Base::moveShifts(scores, factor_);
  }

  // Adds the values of a step to the output, and makes the scores of the next one, which has all its keys.
  __device__ void step(Scores& scores, const T* v, const T* next_k) {
    Scores next;
    unsigned weights[S::kKeys / 16][S::kFragments][4];
    Base::template multiplyQueries<false>(next, next_k, S::kKeys, [&](int part) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) weighOne(weights, scores, part * kTogether + i);
    });
#pragma unroll
    for (int n = 0; n < S::kKeys / 16; ++n) Base::multiplyValues(weights[n], v + place() + n * 16 * S::kStride);
    Base::moveShifts(next, factor_);
#pragma unroll
    for (int f = 0; f < S::kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[f][n][i] = next[f][n][i];
      }
    }
  }

  // Adds the values of a step of `keys` keys.
  __device__ void addValues(const Scores& scores, const T* v, int keys) {
    if (keys < S::kKeys) {
      Base::template addValues<true>(scores, v, keys, factor_);
    } else {
      Base::template addValues<false>(scores, v, keys, factor_);
    }
  }

 private:
  static constexpr int kPairs = S::kKeys / 16 * S::kFragments * 4, kParts = S::kHeadSize / 16;
  static constexpr int kTogether = ceilDiv(kPairs, kParts);  // pairs of weights beside the products of 16 columns

  // The weights of pair `i`, in the order in which the other kernels sum them.
  __device__ void weighOne(unsigned (&weights)[S::kKeys / 16][S::kFragments][4], const Scores& scores, int i) {
    if (i >= kPairs) return;
    const int n = i / 4 / S::kFragments, f = i / 4 % S::kFragments, part = i % 4;
    weights[n][f][part] = Base::weigh(scores[f][n * 2 + part / 2], f, part % 2, factor_);
  }

  // Where a lane's values of 16 keys begin.
  __device__ static int place() {
    const int lane = threadIdx.x % kWarpSize;
    return lane % 16 * S::kStride + lane / 16 * 8;
  }

  const float factor_;
};

// The keys and values of a sequence on their way to shared memory.
template <typename T, class S>
class AheadSteps {
 public:
  using Copier = RowCopier<T, S::kHeadSize, S::kThreads>;

  // token: the first of the sequence; length: its tokens. Starts the copies of the first keys, in one group with those
  // before, and of their values and the next keys, in another.
  __device__ AheadSteps(T* shared, const Copier& copier, const AttentionParams& p, int token, int length)
      : shared_(shared),
        copier_(copier),
        p_(p),
        next_k_(copier.source(p.k, token)),
        next_v_(copier.source(p.v, token)),
        keys_(length),
        values_(length) {
    copy(keyBuffer(0), p.k, next_k_, keys_);
    commitCopies();
    copy(valueBuffer(0), p.v, next_v_, values_);
    copy(keyBuffer(1), p.k, next_k_, keys_);
    commitCopies();
  }

  // Waits until the values of this step and the keys of the next are there, and every warp is done with those before,
  // whose buffers the next ones get.
  __device__ void arrive() {
    waitCopies<0>();
    __syncthreads();
    copy(keyBuffer(stage_), p_.k, next_k_, keys_);
    stage_ = 1 - stage_;
    copy(valueBuffer(stage_), p_.v, next_v_, values_);
    commitCopies();
  }

  __device__ const T* firstKeys() const { return shared_; }
  __device__ const T* values() const { return valueBuffer(1 - stage_); }
  __device__ const T* nextKeys() const { return keyBuffer(stage_); }

 private:
  static constexpr int kBuffer = S::kKeys * S::kStride;

  __device__ T* keyBuffer(int stage) const { return shared_ + stage * kBuffer; }
  __device__ T* valueBuffer(int stage) const { return shared_ + (2 + stage) * kBuffer; }

  // Copies the rows of a step, of which `left` or fewer exist.
  __device__ void copy(T* target, const AttentionOperand& operand, const T*& next, int& left) {
    if (left > 0) copyNext<S::kKeys>(copier_, target, operand, next, left);
    left -= S::kKeys;
  }

  T* const shared_;
  const Copier& copier_;
  const AttentionParams& p_;
  const T *next_k_, *next_v_;
  int keys_, values_;  // that are still to be copied
  int stage_ = 0;      // of the keys and values that come next
};

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) attentionAheadKernel(AttentionParams p) {
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

  const int kv_head = p.kv_heads == p.H ? head : head / (p.H / p.kv_heads);  // divisions take a while
  const RowCopier<T, S::kHeadSize, S::kThreads> copier(head, p.D), kv_copier(kv_head, p.D);
  copier.template copyBriefly<S::kRows>(shared_q, p.q, tile.begin + tile.first, tile.rows);
  AheadSteps<T, S> steps(shared_kv, kv_copier, p, tile.begin, tile.length);

  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * S::kWarpRows;
  const bool has_rows = warp_row < tile.rows;  // a warp without rows only helps to copy
  AheadRows<T, S> rows(p.scale * kLog2E);
  rows.begin(shared_q + warp_row * S::kStride, nullptr, p.D);
  waitCopies<1>();
  if (const T* const bias = biasOf<T>(p.q, head)) copier.template add<S::kRows>(shared_q, bias);
  __syncthreads();
  typename AheadRows<T, S>::Scores scores;
  int left = tile.length;  // keys from this step on
  if (has_rows) rows.score(scores, steps.firstKeys(), left);
  for (; left >= 2 * S::kKeys; left -= S::kKeys) {
    steps.arrive();
    if (has_rows) rows.step(scores, steps.values(), steps.nextKeys());
  }
  for (; left > 0; left -= S::kKeys) {  // the last step, or the last two
    steps.arrive();
    if (!has_rows) continue;
    rows.addValues(scores, steps.values(), left);
    if (left > S::kKeys) rows.score(scores, steps.nextKeys(), left - S::kKeys);
  }
  if (!has_rows) return;
  float totals[S::kFragments][2];
  rows.totalAll(totals);
  rows.store(y + warp_row * y_stride, y_stride, tile.rows - warp_row, biasOf<T>(p.v, kv_head), p.D, totals,
             p.e4m3_factor);
}

template <typename T, class S>
cudaError_t launchAhead(const AttentionParams& params, cudaStream_t stream) {
  const auto kernel = params.e4m3_factor > 0.f ? attentionAheadKernel<T, S, E4m3> : attentionAheadKernel<T, S, T>;
  return launchWithSharedMemory(kernel, tileGrid(params, S::kRows), S::kThreads, ringBytes<T, S>(), stream, params);
}

}  // namespace
}  // namespace padfree
