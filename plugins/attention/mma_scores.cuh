// SPDX-License-Identifier: Apache-2.0
// What the mma.sync kernel makes of products q k^T before the softmax, for the fragments that mma_rows.cuh describes.
#pragma once

#include <cmath>

#include "attention/launch.h"
#include "attention/window.cuh"
#include "common/device.cuh"
#include "common/ptx/exp2.cuh"

namespace padfree {

// Every key counts, and nothing is added.
class PlainScores {
 public:
  __device__ PlainScores(const AttentionParams& p, int) : scale_log2_(p.scale * kLog2E) {}

  __device__ static KeyRange keys(const AttentionParams&, int, int, int length) { return {0, length}; }
  __device__ bool seesAny(int, int, int, int) const { return true; }
  template <int kFragments, int kKeyBlocks>
  __device__ void adjust(float (&)[kFragments][kKeyBlocks][4], int, int) const {}
  __device__ float factor() const { return scale_log2_; }  // what exponents are of adjusted scores

 private:
  const float scale_log2_;
};

// A window, and nothing added.
class WindowScores {
 public:
  __device__ WindowScores(const AttentionParams& p, int)
      : scale_log2_(p.scale * kLog2E),
        left_(p.window_left < 0 ? kOpen : p.window_left),
        right_(p.window_right < 0 ? kOpen : p.window_right) {}

  __device__ static KeyRange keys(const AttentionParams& p, int first, int last, int length) {
    return visibleKeys(p, first, last, length);
  }

  // Whether one of the rows [first_row, last_row] sees one of `keys` keys from first_key on.
  __device__ bool seesAny(int first_row, int last_row, int first_key, int keys) const {
    return first_key - last_row <= right_ && first_row - (first_key + keys - 1) <= left_;
  }

  // first_row and first_key are those of the warp's fragments, counted in the sequence.
  template <int kFragments, int kKeyBlocks>
  __device__ void adjust(float (&scores)[kFragments][kKeyBlocks][4], int first_row, int first_key) const {
    hideKeys(scores, firstDistance(first_row, first_key), first_row, first_key);
  }

  __device__ float factor() const { return scale_log2_; }

 protected:
  // The distance, key - row, of the lane's first score.
  __device__ static int firstDistance(int first_row, int first_key) {
    const int lane = threadIdx.x % kWarpSize;
    return first_key + lane % 4 * 2 - (first_row + lane / 4);
  }

  template <int kFragments, int kKeyBlocks>
  __device__ void hideKeys(float (&scores)[kFragments][kKeyBlocks][4], int distance, int first_row,
                           int first_key) const {
    // Where the first row sees the last key, and the last row the first key, every row sees every key.
    if (first_key + kKeyBlocks * 8 - 1 - first_row <= right_ && first_row + kFragments * 16 - 1 - first_key <= left_) {
      return;
    }
    forEach(scores, distance, [this](float& score, int away) {
      if (away > right_ || -away > left_) score = -INFINITY;
    });
  }

  // Calls function(score, key - row) for all scores.
  template <int kFragments, int kKeyBlocks, class Function>
  __device__ static void forEach(float (&scores)[kFragments][kKeyBlocks][4], int distance, const Function& function) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) function(scores[f][n][i], distance + n * 8 + i % 2 - i / 2 * 8 - f * 16);
      }
    }
  }

  const float scale_log2_;

 private:
  static constexpr int kOpen = 0x7fffffff;
  const int left_, right_;
};

// Windows and biases. Adjusted scores are exponents of 2.
class PositionedScores : public WindowScores {
 public:
  __device__ PositionedScores(const AttentionParams& p, int head)
      : WindowScores(p, head),
        slope_log2_(p.bias == AttentionBias::kSlope ? p.slopes[head] * kLog2E : 0.f),
        range_(p.bias_range),
        middle_(p.bias == AttentionBias::kDistance
                    ? p.distance_bias + head * (2 * static_cast<int64_t>(p.bias_range) + 1) + p.bias_range
                    : nullptr) {}

  template <int kFragments, int kKeyBlocks>
  __device__ void adjust(float (&scores)[kFragments][kKeyBlocks][4], int first_row, int first_key) const {
    const int distance = firstDistance(first_row, first_key);
    if (middle_) {
      addTable(scores, distance);
    } else {
      addSlope(scores, distance);
    }
    hideKeys(scores, distance, first_row, first_key);
  }

  __device__ static constexpr float factor() { return 1.f; }

 private:
  template <int kFragments, int kKeyBlocks>
  __device__ void addSlope(float (&scores)[kFragments][kKeyBlocks][4], int distance) const {
    forEach(scores, distance, [this](float& score, int away) {
      score = fmaf(-slope_log2_, fabsf(static_cast<float>(away)), score * scale_log2_);
    });
  }

  // The lower half of a fragment is as far from 8 keys as its upper half is from the 8 before: a value serves twice.
  template <int kFragments, int kKeyBlocks>
  __device__ void addTable(float (&scores)[kFragments][kKeyBlocks][4], int distance) const {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      float before[2] = {table(distance - 8 - f * 16), table(distance - 7 - f * 16)};
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float value = table(distance + n * 8 + i - f * 16);
          scores[f][n][i] = fmaf(scores[f][n][i], scale_log2_, value);
          scores[f][n][i + 2] = fmaf(scores[f][n][i + 2], scale_log2_, before[i]);
          before[i] = value;
        }
      }
    }
  }

  __device__ float table(int away) const { return middle_[max(min(away, range_), -range_)] * kLog2E; }

  const float slope_log2_;
  const int range_;
  const float* const middle_;  // the bias at distance 0, or null
};

}  // namespace padfree
