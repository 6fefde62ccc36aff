// SPDX-License-Identifier: Apache-2.0
// Norms of rows from their moments.
#pragma once

#include "common/device.cuh"
#include "linear/launch.h"

namespace padfree {

// Sets what these functions read of a kernel's work, but T and rms, where the input or the residual is normed.
template <typename Work>
void setNorm(Work& work, const LinearParams& p) {
  work.moments_in = reinterpret_cast<const float2*>(p.x_moments ? p.x_moments : p.residual_moments);
  work.groups_in = (p.x_moments ? p.K : p.N) / kMomentFeatures;
  work.per_group = work.groups_in > 0 ? 1.f / work.groups_in : 0.f;
  work.epsilon = p.x_moments ? p.x_epsilon : p.residual_epsilon;
}

// What a row is multiplied by and what is added then, so that it has mean 0 and variance 1, or a mean square of 1: from
// the mean of its first group, the sums of all groups' distances from that and of their squares, and the sum of what is
// within the groups. Of a kernel's work it reads per_group (1 / groups_in), epsilon and rms.
template <typename Work>
__device__ inline float2 scaleFrom(float first, float distances, float between, float within, const Work& work) {
  const float mean = distances * work.per_group;
  const float spread = fmaxf(fmaf(between, work.per_group, -mean * mean), 0.f);
  const float variance = spread + within * (work.per_group / kMomentFeatures) + work.epsilon;
  if (work.rms) return {rsqrtf(fmaf(first + mean, first + mean, variance)), 0.f};
  const float scale = rsqrtf(variance);
  return {scale, -(first + mean) * scale};
}

// The scale of a row, whose moments stand T apart, group by group. Of a kernel's work it reads T and groups_in beside.
template <typename Work>
__device__ inline float2 scaleOfRow(const float2* moments, const Work& work) {
  constexpr int kAtOnce = 8, kFew = 16;  // loads in flight; groups of most models
  float first = 0, distances = 0, between = 0, within = 0;
  int begin = 0;
  do {
#pragma unroll
    for (int start = 0; start < kFew; start += kAtOnce) {
      const int left = work.groups_in - begin - start;
      float2 of_group[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i, moments += work.T) {
        if (i < left) of_group[i] = __ldcg(moments);
      }
      if (start == 0 && begin == 0) first = of_group[0].x;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= left) continue;
        const float distance = of_group[i].x - first;
        distances += distance;
        between = fmaf(distance, distance, between);
        within += of_group[i].y;
      }
    }
    begin += kFew;
  } while (begin < work.groups_in);
  return scaleFrom(first, distances, between, within, work);
}

// The same of several rows, kStep apart, as far as they are before `rows`; other results mean nothing. A load takes a
// microsecond while a ring of stages is being filled: so kLoads of them are in flight, over all the rows.
template <int kStep, int kRows, typename Work>
__device__ inline void scalesOfRows(float2 (&scales)[kRows], const float2* moments, int rows, const Work& work) {
  constexpr int kLoads = 12, kGroups = kLoads / kRows;
  static_assert(kGroups > 0);
  float first[kRows] = {}, distances[kRows] = {}, between[kRows] = {}, within[kRows] = {};
  for (int begin = 0; begin < work.groups_in; begin += kGroups) {
    float2 of_group[kGroups][kRows];
#pragma unroll
    for (int i = 0; i < kGroups; ++i, moments += work.T) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const bool is_there = begin + i < work.groups_in && row * kStep < rows;
        of_group[i][row] = is_there ? __ldcg(moments + row * kStep) : float2{0.f, 0.f};
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (begin == 0) first[row] = of_group[0][row].x;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (begin + i >= work.groups_in) continue;
        const float distance = of_group[i][row].x - first[row];
        distances[row] += distance;
        between[row] = fmaf(distance, distance, between[row]);
        within[row] += of_group[i][row].y;
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    scales[row] = scaleFrom(first[row], distances[row], between[row], within[row], work);
  }
}

}  // namespace padfree
