// SPDX-License-Identifier: Apache-2.0
// Layer norms without kernels of their own: a GEMM that makes rows which are normed next also writes their moments,
// in groups of 64 features, and the GEMMs that read such rows norm them in their epilogues.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/ptx/mma.cuh"
#include "linear/row_scale.cuh"
#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

// Sums and sums of squares over 64 features of 8 tokens, the rows of a panel from `row` on, and of others each kStep
// rows further, as far as these are before kEnd (else of any): by the matrix unit, rows multiplied with themselves and
// with ones. A warp calls it; lanes for which isMomentsLane() get those of the token momentsToken().
template <typename T, int kStep, int kEnd, int kTimes>
__device__ inline void sumsOfRows(float2 (&result)[kTimes], const unsigned char* panel, int row, int lane) {
  const unsigned one = packPair<T>(1.f, 1.f);
  unsigned b[kTimes][2][4];
#pragma unroll
  for (int i = 0; i < 2 * kTimes; ++i) {
    const int time = i % kTimes, half = i / kTimes, begin = row + time * kStep;
    const int from = begin < kEnd ? begin : 0;
    loadMatrices(b[time][half], panel + panelOffset(from + lane % 8, half * 4 + lane / 8));
  }
  float sums[kTimes][4] = {};  // with themselves, then with ones
#pragma unroll
  for (int i = 0; i < 4 * kTimes; ++i) {
    const unsigned* const pair = &b[i % kTimes][i / kTimes / 2][i / kTimes % 2 * 2];
    const unsigned a[] = {pair[0], one, pair[1], one};
    multiplyAdd<T>(sums[i % kTimes], a, pair[0], pair[1]);
  }
#pragma unroll
  for (int time = 0; time < kTimes; ++time) {
    const float (&row_sums)[4] = sums[time];
    result[time] = lane / 4 % 2 ? float2{row_sums[3], row_sums[1]} : float2{row_sums[2], row_sums[0]};
  }
}
__device__ inline bool isMomentsLane(int lane) {
  return lane / 4 / 2 == lane % 4;  // on the diagonal of the products of rows with each other
}
__device__ inline int momentsToken(int lane) {
  return lane / 4;
}

// Mean and sum of squared deviations from it.
__device__ inline float2 momentsOf(float2 sums, int count) {
  const float mean = sums.x / count;
  return {mean, fmaxf(sums.y - sums.x * mean, 0.f)};
}

// The scales of every tile's tokens, by kScaleThreads threads that have nothing else to do: the next tile's are on
// their way while one is computed. kMayLack: where nothing is normed, rows are scaled by 1, so that a rare epilogue
// needs no second kernel.
template <int kTokens, bool kMayLack, bool kHeadsFirst = false, typename Scale>
__device__ void fetchScales(const Work& work, const BlockCoord& coord, ScaleBarriers& barriers, Scale* scales,
                            int thread) {
  constexpr int kRows = ceilDiv(kTokens, kScaleThreads);
  unsigned parity = 1;
  waitForPriorGrids();
  for (int cluster = coord.first; cluster < work.clusters; cluster += coord.step, parity ^= 1) {
    const int token = coord.tokenTile<kHeadsFirst>(work, cluster) * kTokens + thread, rows = work.T - token;
    float2 of_rows[kRows];
    const bool lacks = kMayLack && !work.moments_in;
    if (!lacks) scalesOfRows<kScaleThreads>(of_rows, work.moments_in + token, rows, work);
    barrierWait(&barriers.empty, parity);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int row_offset = row * kScaleThreads;
      if (row_offset + thread >= kTokens) break;
      const float2 scale = row_offset < rows ? of_rows[row] : float2{0.f, 0.f};
      const float2 row_scale = lacks ? float2{1.f, 0.f} : scale;
      if constexpr (std::is_same_v<Scale, float>) {
        scales[row_offset + thread] = row_scale.x;
      } else {
        scales[row_offset + thread] = row_scale;
      }
    }
    barrierArrive(&barriers.full);
  }
}

}  // namespace padfree
