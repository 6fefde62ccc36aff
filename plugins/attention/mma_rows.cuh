// SPDX-License-Identifier: Apache-2.0
// What a warp of the mma.sync kernel keeps in registers: the query rows it owns, their output and their softmax.
#pragma once

#include <cmath>
#include <type_traits>

#include "attention/mma_results.cuh"
#include "attention/mma_scores.cuh"
#include "common/device.cuh"
#include "common/ptx/e4m3.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/mma.cuh"

namespace padfree {

// What a warp does between products unless it is told.
struct Nothing {
  __device__ void operator()(int) const {}
};

// kHeadSize: columns in registers, zeros from D on. kFragments: 16-row fragments of queries per warp; two of them halve
// the reads of K and V from shared memory. kKeys: keys of one step. kStride: elements between rows of shared memory.
//
// A lane holds rows lane / 4 and lane / 4 + 8 of each fragment, and of each 8 columns the two from lane % 4 * 2 on (PTX
// ISA, matrix fragments of mma.m16n8k16). So the accumulators of scores lie in the lanes that need them as weights for
// the second product.
//
// Adjust: PlainScores, WindowScores or PositionedScores. kSharedQueries: queries stay in shared memory, and are read
// again in every step, so that large heads leave registers for longer steps. kBranches: the last step multiplies the
// keys that count, rounded up to 16; otherwise all or the first half, so that no branch lies between products.
// kColumns: of the output, all unless warps share rows (mma_pair_kernel.cuh).
template <typename T, int kHeadSize, int kFragments, int kKeys, int kStride, class Adjust, bool kSharedQueries = false,
          bool kBranches = true, int kColumns = kHeadSize>
class WarpRows {
 public:
  static constexpr int kKeyBlocks = kKeys / 8;
  using Scores = float[kFragments][kKeyBlocks][4];

  // Loads the rows from shared memory, and adds Q's bias [D] unless it is null. With kSharedQueries, the rows may
  // arrive later, and contain their bias already.
  __device__ void begin(const T* queries, const T* bias, int D) {
    query_row_ = queries + lane_ % 16 * kStride + lane_ / 16 * 8;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      if constexpr (!kSharedQueries) {
#pragma unroll
        for (int d = 0; d < kHeadSize / 16; ++d) loadQueries(queries_[f][d], f, d);
      }
#pragma unroll
      for (int d = 0; d < kColumnBlocks; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) output_[f][d][i] = 0.f;
      }
      shift_[f][0] = shift_[f][1] = kInitialShift;
      sum_[f][0] = sum_[f][1] = 0.f;
    }
    if constexpr (!kSharedQueries) {
      if (bias) addToQueries(bias, D);
    }
  }

  // Processes the keys and values of one step, the first of which is number first_key of the sequence; first_row: that
  // of the first row. kMasked: of the keys only the first `keys` count; zeros follow them in shared memory, with
  // kBranches up to the next multiple of 16, and nothing beyond that is read.
  template <bool kMasked>
  __device__ void step(const T* k, const T* v, int keys, const Adjust& adjust, int first_row, int first_key) {
    Scores scores;
    multiplyQueries<kMasked>(scores, k, keys);
    adjust.adjust(scores, first_row, first_key);
    consumeScores<kMasked>(scores, v, keys, adjust.factor());
  }

  // The part of a step that needs no values, without the moves of references; it leaves the scores for the other parts.
  template <bool kMasked>
  __device__ void scoreKeys(Scores& scores, const T* k, int keys, const Adjust& adjust, int first_row, int first_key) {
    multiplyQueries<kMasked>(scores, k, keys);
    adjust.adjust(scores, first_row, first_key);
  }

  // Moves the reference of each row that needs it. What a row gets depends on no other row, so that a sequence has the
  // same result, bit by bit, wherever it stands in a batch.
  __device__ void moveShifts(const Scores& scores, float factor) {
    RowValues peaks;
    bool moves = false;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        peaks[f][part] = peakOf(scores[f], part);
        moves = moves || exceeds(peaks[f][part], f, part, factor);
      }
    }
    if (!__any_sync(kFullMask, moves)) return;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int part = 0; part < 2; ++part) moveShift(largestOfLanes(peaks[f][part]), f, part, factor);
    }
  }

  // The part of a step that follows the scores; their exponents are scores * factor.
  template <bool kMasked>
  __device__ void consumeScores(const Scores& scores, const T* v, int keys, float factor) {
    moveShifts(scores, factor);
    addValues<kMasked>(scores, v, keys, factor);
  }

  // output += 2^(scores * factor - shift) v; 16 keys at a time, so that the exponentials of the next 16 overlap with
  // the products of these.
  template <bool kMasked>
  __device__ void addValues(const Scores& scores, const T* v, int keys, float factor) {
    const T* const row = v + lane_ % 16 * kStride + lane_ / 16 * 8;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; n += 2) {
      if (kMasked && (kBranches || n == kKeyBlocks / 2) && n * 8 >= keys) break;
      unsigned weights[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[f][i] = weigh(scores[f][n + i / 2], f, i % 2, factor);
      }
      multiplyValues(weights, row + n * 8 * kStride);
    }
  }

  // The fragment of 16 rows and of columns 16 * d to 16 * d + 15.
  __device__ const unsigned (&queries(int f, int d) const)[4] { return queries_[f][d]; }

  // Writes the first `rows` rows to y, `stride` elements apart, and adds V's bias [D] unless it is null. Result is T,
  // or E4m3 for results times `factor`. Neighbouring lanes swap halves first, so that four lanes write 16 results in a
  // row: of T a whole sector.
  template <typename Result>
  __device__ void storeOutput(Result* y, int64_t stride, int rows, const T* bias, int D,
                              [[maybe_unused]] float factor) {
    const bool odd = lane_ % 2;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        float total = sum_[f][part];
        total += __shfl_xor_sync(kFullMask, total, 1);
        total += __shfl_xor_sync(kFullMask, total, 2);
        const float inverse = __fdividef(1.f, total);
        const int row = f * 16 + part * 8 + lane_ / 4;
        Result* const target = y + row * stride + odd * 8 + lane_ % 4 / 2 * 4;
#pragma unroll
        for (int d = 0; d < kColumnBlocks; d += 2) {
          unsigned pairs[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float* const sums = &output_[f][d + i][part * 2];
            const float2 addend = biasPair(bias, (d + i) * 8 + lane_ % 4 * 2, D);
            const float low = fmaf(sums[0], inverse, addend.x), high = fmaf(sums[1], inverse, addend.y);
            if constexpr (std::is_same_v<Result, E4m3>) {
              pairs[i] = packE4m3(low * factor, high * factor);
            } else {
              pairs[i] = packPair<T>(low, high);
            }
          }
          const unsigned received = __shfl_xor_sync(kFullMask, odd ? pairs[0] : pairs[1], 1);
          const uint2 stored = odd ? uint2{received, pairs[1]} : uint2{pairs[0], received};
          if (row < rows && (d + odd) * 8 < D) storeFour(target + d * 8, stored);
        }
      }
    }
  }

 protected:
  using RowValues = float[kFragments][2];

  // The reference of the exponentials only has to keep them in range. It follows a row's maximum when they would grow
  // beyond 2^8, so that most steps need no pass over the output. (2^8 times 2^-24 is far from fp16's smallest weight.)
  static constexpr float kLargestExponent = 8.f;
  // Before a row has seen a key. Finite: what a row does not see has the exponent -inf, and their difference is not
  // NaN.
  static constexpr float kInitialShift = -1e38f;
  static constexpr int kColumnBlocks = kColumns / 8;

  // Two pairs of neighbours, each at the lower end of a register.
  __device__ static void storeFour(T* target, uint2 pairs) { *reinterpret_cast<uint2*>(target) = pairs; }
  __device__ static void storeFour(E4m3* target, uint2 pairs) {
    *reinterpret_cast<unsigned*>(target) = pairs.x | pairs.y << 16;
  }

  __device__ static float2 biasPair(const T* bias, int column, int D) {
    return bias && column < D ? unpackPair<T>(*reinterpret_cast<const unsigned*>(bias + column)) : float2{0.f, 0.f};
  }

  // The weights of two neighbouring keys for a row.
  __device__ unsigned weigh(const float (&scores)[4], int f, int part, float factor) {
    const float a = exp2Fast(fmaf(scores[part * 2], factor, -shift_[f][part]));
    const float b = exp2Fast(fmaf(scores[part * 2 + 1], factor, -shift_[f][part]));
    sum_[f][part] += a + b;
    return packPair<T>(a, b);
  }

  // output += weights v, of 16 keys; v: the lane's address in their rows. between(i) is called in quarter i.
  template <class Between = Nothing>
  __device__ void multiplyValues(const unsigned (&weights)[kFragments][4], const T* v, const Between& between = {}) {
#pragma unroll
    for (int d = 0; d < kColumnBlocks; d += 2) {
      static_assert(std::is_same_v<Between, Nothing> || kColumnBlocks % 8 == 0, "parts are even");
      if (d * 4 % kColumnBlocks == 0) between(d * 4 / kColumnBlocks);
      unsigned b[4];
      loadMatricesTransposed(b, v + d * 8);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        multiplyAdd<T>(output_[f][d], weights[f], b[0], b[1]);
        multiplyAdd<T>(output_[f][d + 1], weights[f], b[2], b[3]);
      }
    }
  }

  __device__ void loadQueries(unsigned (&fragment)[4], int f, int d) const {
    loadMatrices(fragment, query_row_ + f * 16 * kStride + d * 16);
  }

  __device__ static const unsigned (&choose(const unsigned (&loaded)[4], const unsigned (&kept)[4]))[4] {
    if constexpr (kSharedQueries) {
      return loaded;
    } else {
      return kept;
    }
  }

  __device__ void addToQueries(const T* bias, int D) {
#pragma unroll
    for (int d = 0; d < kHeadSize / 8; ++d) {
      const float2 addend = biasPair(bias, d * 8 + lane_ % 4 * 2, D);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          unsigned& pair = queries_[f][d / 2][d % 2 * 2 + part];
          const float2 value = unpackPair<T>(pair);
          pair = packPair<T>(value.x + addend.x, value.y + addend.y);
        }
      }
    }
  }

  // scores = queries k^T; -inf for keys that do not count.
  template <bool kMasked, class Between = Nothing>
  __device__ void multiplyQueries(Scores& scores, const T* k, int keys, const Between& between = {}) const {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[f][n][i] = 0.f;
      }
    }
    if constexpr (kMasked && kBranches) {
      addProducts<kKeyBlocks, true>(scores, k, keys, between);
    } else if (kMasked && keys <= kKeys / 2) {
      addProducts<kKeyBlocks / 2, false>(scores, k, keys, between);
    } else {
      addProducts<kKeyBlocks, false>(scores, k, keys, between);
    }
    if constexpr (kMasked) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (n * 8 + lane_ % 4 * 2 + i < keys) continue;
#pragma unroll
          for (int f = 0; f < kFragments; ++f) scores[f][n][i] = scores[f][n][i + 2] = -INFINITY;
        }
      }
    }
  }

  // The same of the first kBlocks key blocks. kStops: of no more keys than count, in a multiple of 16.
  // between(i) is called with the products of columns 16 * i on.
  template <int kBlocks, bool kStops, class Between>
  __device__ void addProducts(Scores& scores, const T* k, [[maybe_unused]] int keys, const Between& between) const {
    const T* const row = k + (lane_ / 16 * 8 + lane_ % 8) * kStride + lane_ / 8 % 2 * 8;
#pragma unroll
    for (int d = 0; d < kHeadSize / 16; ++d) {
      between(d);
      unsigned loaded[kFragments][4];
      if constexpr (kSharedQueries) {
#pragma unroll
        for (int f = 0; f < kFragments; ++f) loadQueries(loaded[f], f, d);
      }
#pragma unroll
      for (int n = 0; n < kBlocks; n += 2) {
        if (kStops && n * 8 >= keys) break;
        unsigned b[4];
        loadMatrices(b, row + n * 8 * kStride + d * 16);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          const unsigned (&a)[4] = choose(loaded[f], queries_[f][d]);
          multiplyAdd<T>(scores[f][n], a, b[0], b[1]);
          multiplyAdd<T>(scores[f][n + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // The largest score of a row in this lane's columns.
  __device__ static float peakOf(const float (&scores)[kKeyBlocks][4], int part) {
    float peak = -INFINITY;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) peak = fmaxf(peak, fmaxf(scores[n][part * 2], scores[n][part * 2 + 1]));
    return peak;
  }

  // Of the four lanes that hold a row.
  __device__ static float largestOfLanes(float value) {
    value = fmaxf(value, __shfl_xor_sync(kFullMask, value, 1));
    return fmaxf(value, __shfl_xor_sync(kFullMask, value, 2));
  }

  // Moves a row's reference to its largest score if it needs that.
  __device__ void moveShift(float peak, int f, int part, float factor) {
    const bool row_moves = exceeds(peak, f, part, factor);
    const float new_shift = peak * factor;
    const float correction = row_moves ? exp2Fast(shift_[f][part] - new_shift) : 1.f;
    shift_[f][part] = row_moves ? new_shift : shift_[f][part];
    sum_[f][part] *= correction;
#pragma unroll
    for (int d = 0; d < kColumnBlocks; ++d) {
      output_[f][d][part * 2] *= correction;
      output_[f][d][part * 2 + 1] *= correction;
    }
  }

  __device__ bool exceeds(float score, int f, int part, float factor) const {
    return fmaf(score, factor, -shift_[f][part]) > kLargestExponent;
  }

  const int lane_ = threadIdx.x % kWarpSize;
  const T* query_row_;
  unsigned queries_[kFragments][kHeadSize / 16][4];
  float output_[kFragments][kColumnBlocks][4];
  float shift_[kFragments][2];  // reference of the exponentials
  float sum_[kFragments][2];    // of the weights in this lane's columns
};

}  // namespace padfree
