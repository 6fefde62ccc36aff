// SPDX-License-Identifier: Apache-2.0
// What depends on where rows and keys stand, for the Hopper attention kernels: windows, slopes and distance biases. They
// change a step's scores before its softmax, in units in which `scale` is still to come.
#pragma once

#include "attention/launch.h"
#include "attention/sm90_rows.cuh"

namespace padfree {

constexpr int kWarpRows = 16;  // rows of a warp; a lane has row lane / 4 of them and the eighth after it

// How far rows see, with an end where the window is open.
struct Window {
  int left, right;
};

__device__ inline Window windowOf(const AttentionParams& p) {
  constexpr int kOpen = 1 << 30;  // no two tokens are so far apart
  return {p.window_left < 0 ? kOpen : min(p.window_left, kOpen),
          p.window_right < 0 ? kOpen : min(p.window_right, kOpen)};
}

// Calls function(score, place) for a lane's scores of a step's first kCount keys. The distance from the row to the key is
// laneDistance + place, which is the same number for a row and a key each eight further: lanes need kCount / 4 + 2
// values for kCount / 2 scores.
template <int kCount, typename S, typename Function>
__device__ inline void forScores(Sm90Rows<S>& rows, Function function) {
#pragma unroll
  for (int n = 0; n < kCount / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) function(rows.scores[n][i], n * 8 + i % 2 - i / 2 * 8);
  }
}

// `nearest`: from the warp's first row to the step's first key.
__device__ inline int laneDistance(int nearest) {
  const int lane = threadIdx.x % kWarpSize;
  return nearest + lane % 4 * 2 - lane / 4;
}

// Scores of keys outside of the window become -infinity.
template <int kCount, typename S>
__device__ inline void hideOutside(Sm90Rows<S>& rows, const Window& window, int nearest) {
  if (nearest - (kWarpRows - 1) >= -window.left && nearest + kCount - 1 <= window.right) return;
  const int distance = laneDistance(nearest), low = -window.left - distance, high = window.right - distance;
  forScores<kCount>(rows, [&](float& score, int place) {
    if (place < low || place > high) score = -INFINITY;
  });
}

// slope: of a row's scores with the distance.
template <int kCount, typename S>
__device__ inline void addSlope(Sm90Rows<S>& rows, float slope, int nearest) {
  const float distance = static_cast<float>(laneDistance(nearest));
  forScores<kCount>(rows, [&](float& score, int place) {
    score = fmaf(slope, fabsf(distance + static_cast<float>(place)), score);
  });
}

// The distance biases of a head in shared memory, in units of scores: those of distances [-reach, reach], constant
// beyond the range. Entry [distance + reach].
struct DistanceTable {
  float* entries;
  int reach;
};

// Threads of one warpgroup, which has to meet at a barrier before the table is read.
__device__ inline void fillTable(const AttentionParams& p, int head, const DistanceTable& table) {
  const int range = p.bias_range;
  const float* const biases = p.distance_bias + static_cast<int64_t>(head) * (2 * range + 1) + range;
  const float unit = 1.f / p.scale;
  for (int i = threadIdx.x % kWarpgroup; i <= 2 * table.reach; i += kWarpgroup) {
    table.entries[i] = biases[min(max(i - table.reach, -range), range)] * unit;
  }
}

// All distances of the step are in the table.
template <int kCount, typename S>
__device__ inline void addTable(Sm90Rows<S>& rows, const DistanceTable& table, int nearest) {
  const float* const entry = table.entries + table.reach + laneDistance(nearest);
  forScores<kCount>(rows, [&](float& score, int place) { score += entry[place]; });
}

// The table begins and ends so far beyond the range that a step's distances are in it, or wholly beyond the range.
template <int kCount, typename S>
__device__ inline void addTableOrEnd(Sm90Rows<S>& rows, const DistanceTable& table, int range, int nearest) {
  const bool before = nearest + kCount - 1 <= -range, behind = nearest - (kWarpRows - 1) >= range;
  if (!before && !behind) return addTable<kCount>(rows, table, nearest);
  const float end = table.entries[before ? 0 : 2 * table.reach];
  forScores<kCount>(rows, [&](float& score, int) { score += end; });
}

// The same without a table, for rare cases.
template <int kCount, typename S>
__device__ inline void addDistanceBias(Sm90Rows<S>& rows, const AttentionParams& p, int head, int nearest) {
  const int range = p.bias_range, distance = laneDistance(nearest);
  const float* const biases = p.distance_bias + static_cast<int64_t>(head) * (2 * range + 1) + range;
  const float unit = 1.f / p.scale;
  forScores<kCount>(rows, [&](float& score, int place) {
    score = fmaf(biases[min(max(distance + place, -range), range)], unit, score);
  });
}

}  // namespace padfree
