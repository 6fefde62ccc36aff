// SPDX-License-Identifier: Apache-2.0
// Layer norms without kernels of their own: a product that makes rows which are normed next also writes their moments,
// in groups of 64 features, and the products that read such rows norm them while they finish.
#pragma once

#include "common/mma.cuh"
#include "linear/cut.cuh"

namespace padfree {

// Sum and sum of squares over 64 features of 8 tokens, rows of a panel from `row` on: by the matrix unit, with ones and
// with themselves. A warp calls it; lanes for which isMomentsLane() get those of the token momentsToken().
template <typename T>
__device__ inline float2 sumsOfRows(const unsigned char* panel, int row, int lane) {
  const unsigned one = packPair<T>(1.f, 1.f), ones[] = {one, one, one, one};
  float sums[4] = {}, squares[4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned b[4];
    loadMatrices(b, panel + panelOffset(row + lane % 8, half * 4 + lane / 8));
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const unsigned a[] = {b[i], 0, b[i + 1], 0};
      multiplyAdd<T>(sums, ones, b[i], b[i + 1]);
      multiplyAdd<T>(squares, a, b[i], b[i + 1]);
    }
  }
  return lane / 4 % 2 ? float2{sums[1], squares[1]} : float2{sums[0], squares[0]};
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

// Moments of one row on their way from memory: asked for before the products are computed, needed after.
class RowMoments {
 public:
  // They stand `rows` apart, group by group.
  __device__ void load(const float2* moments, int groups, int rows) {
#pragma unroll
    for (int group = 0; group < kMaxMomentGroups; ++group, moments += rows) {
      if (group < groups) of_group_[group] = __ldcg(moments);
    }
  }

  // What the row is multiplied by and what is added then, so that it has mean 0 and variance 1. The groups' means are
  // added up as distances from the first.
  __device__ float2 scale(int groups, float per_group, float epsilon) const {
    const float first = of_group_[0].x;
    float distances = 0, between = 0, within = 0;
#pragma unroll
    for (int group = 0; group < kMaxMomentGroups; ++group) {
      if (group >= groups) break;
      const float distance = of_group_[group].x - first;
      distances += distance;
      between = fmaf(distance, distance, between);
      within += of_group_[group].y;
    }
    const float mean = distances * per_group;
    const float variance = fmaxf(fmaf(between, per_group, -mean * mean), 0.f) + within * (per_group / kGroupFeatures);
    const float scale = rsqrtf(variance + epsilon);
    return {scale, -(first + mean) * scale};
  }

 private:
  float2 of_group_[kMaxMomentGroups];
};

}  // namespace padfree
