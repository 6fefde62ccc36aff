// SPDX-License-Identifier: Apache-2.0
// What depends on the positions of rows and keys, for the Hopper attention kernels: windows mask scores of a step
// before its softmax, slopes and distance biases are added on the way to exponentials, in units of powers of two.
#pragma once

#include "attention/kernels.h"
#include "attention/sm90/rows.cuh"
#include "common/ptx/opaque.cuh"

namespace padfree {

template <PositionMode kPositionMode>
struct PositionModeTag {
  static constexpr PositionMode value = kPositionMode;
};

// Calls function(PositionModeTag<...>{}) with what scores depend on.
template <typename Function>
cudaError_t dispatchPositionMode(const AttentionParams& params, Function function) {
  if (params.bias == AttentionBias::kSlope) return function(PositionModeTag<PositionMode::kSlope>{});
  if (params.bias == AttentionBias::kDistance) return function(PositionModeTag<PositionMode::kDistance>{});
  return hasPositions(params) ? function(PositionModeTag<PositionMode::kWindow>{})
                              : function(PositionModeTag<PositionMode::kNone>{});
}

constexpr int kWarpRows = 16;  // rows of a warp; a lane has row lane / 4 of them and the eighth after it

// How far rows see; a large number where the window is open.
struct Window {
  int left, right;
};

__device__ inline Window windowOf(const AttentionParams& p) {
  constexpr int kOpen = 1 << 30;  // no two tokens are so far apart
  return {p.window_left < 0 ? kOpen : min(p.window_left, kOpen),
          p.window_right < 0 ? kOpen : min(p.window_right, kOpen)};
}

// first_distance: from the warp's first row to the step's first key. The distance from a lane's row to its key is that
// of its first score plus elementOffset(...), which is the same for a row and a key that are both eight further: lanes
// need kCount / 4 + 2 values for kCount / 2 scores.
__device__ inline int laneDistance(int first_distance) {
  const int lane = threadIdx.x % kWarpSize;
  return first_distance + lane % 4 * 2 - lane / 4;
}

// Scores of keys outside of the window become -infinity.
template <int kCount, typename S>
__device__ inline void maskOutside(Sm90Rows<S>& rows, const Window& window, int first_distance) {
  if (first_distance - (kWarpRows - 1) >= -window.left && first_distance + kCount - 1 <= window.right) return;
  const int distance = laneDistance(first_distance), low = -window.left - distance, high = window.right - distance;
#pragma unroll
  for (int n = 0; n < kCount / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (elementOffset(n, i) < low || elementOffset(n, i) > high) rows.scores[n][i] = -INFINITY;
    }
  }
}

// Biases are divided by `scale`, by which scores are multiplied later. opaqueCopy(): a copy that the compiler takes for
// another value; otherwise it would compute biases once for two uses far apart, and run out of registers.
struct SlopeBias {
  float slope;     // of scores, with the distance
  float distance;  // of the lane's first score

  __device__ SlopeBias opaqueCopy() const {
    SlopeBias bias = *this;
    makeOpaque(bias.distance);
    return bias;
  }
  __device__ float apply(int offset, float score) const {
    return fmaf(slope, fabsf(distance + static_cast<float>(offset)), score);
  }
};

// The distance biases of a head in shared memory: those of distances [-reach, reach], entry [distance + reach].
struct DistanceTable {
  unsigned entries;  // address in shared space
  int reach;

  __device__ unsigned address(int distance) const { return entries + (distance + reach) * sizeof(float); }
};

struct TableBias {
  unsigned entry;  // of the lane's first score

  __device__ TableBias opaqueCopy() const {
    TableBias bias = *this;
    makeOpaque(bias.entry);
    return bias;
  }
  __device__ float apply(int offset, float score) const {
    return score + *sharedPointer<float>(entry + offset * sizeof(float));
  }
};

// The bias where all distances are beyond the range: that of its end.
struct EndBias {
  float end;
  __device__ EndBias opaqueCopy() const { return *this; }
  __device__ float apply(int, float score) const { return score + end; }
};

// The same as TableBias without a table, for rare cases.
struct DistantBias {
  const float* middle;
  int range, distance;
  float unit;

  __device__ DistantBias opaqueCopy() const { return *this; }
  __device__ float apply(int offset, float score) const {
    return fmaf(middle[min(max(distance + offset, -range), range)], unit, score);
  }
};

// A head's biases by distance: where that of distance 0 is.
__device__ inline const float* middleBias(const AttentionParams& p, int head) {
  return p.distance_bias + static_cast<int64_t>(head) * (2 * p.bias_range + 1) + p.bias_range;
}

template <int kCount, typename S, typename Bias>
__device__ inline void applyBias(Sm90Rows<S>& rows, const Bias& bias) {
#pragma unroll
  for (int n = 0; n < kCount / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.scores[n][i] = bias.apply(elementOffset(n, i), rows.scores[n][i]);
  }
}

// Adds the biases of a head to the scores of a step, where no shape is compiled for them.
template <int kCount, typename S>
__device__ inline void addPositionBias(const AttentionParams& p, Sm90Rows<S>& rows, int head, int first_distance) {
  if (p.bias == AttentionBias::kNone) return;
  const int distance = laneDistance(first_distance);
  const float unit = 1.f / p.scale;
  if (p.bias == AttentionBias::kSlope) {
    applyBias<kCount>(rows, SlopeBias{p.slopes[head] * -unit, static_cast<float>(distance)});
  } else {
    applyBias<kCount>(rows, DistantBias{middleBias(p, head), p.bias_range, distance, unit});
  }
}

// Called by one warpgroup, whose threads must meet at a barrier before they read the table.
__device__ inline void fillTable(const AttentionParams& p, int head, const DistanceTable& table) {
  constexpr int kAtOnce = 5;  // loads in flight
  const int last = 2 * table.reach;
  const float* const middle = middleBias(p, head);
  const float unit = 1.f / p.scale;
#pragma unroll 1
  for (int first = threadIdx.x % kWarpgroup; first <= last; first += kAtOnce * kWarpgroup) {
    float biases[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      biases[i] = middle[min(max(first + i * kWarpgroup - table.reach, -p.bias_range), p.bias_range)];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int entry = first + i * kWarpgroup;
      if (entry <= last) *sharedPointer<float>(table.entries + entry * sizeof(float)) = biases[i] * unit;
    }
  }
}

}  // namespace padfree
