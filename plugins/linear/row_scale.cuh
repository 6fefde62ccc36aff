// SPDX-License-Identifier: Apache-2.0
// Norms of rows from their moments.
#pragma once

#include "common/device.cuh"
#include "linear/launch.h"

namespace padfree {

// What a row is multiplied by and what is added then, so that it has mean 0 and variance 1, or a mean square of 1: of
// the first of several rows, kStep apart, and of those that are before `rows`; other results mean nothing. Moments of a
// row stand T apart, group by group; their means are added up as distances from the first. Of a kernel's work it reads
// T, groups_in, per_group (1 / groups_in), epsilon and rms.
//
// A load takes a microsecond where a ring of stages is filled at the same time, and a tile's rows are wanted when its
// products are done. So a thread has kLoads of them under way, of all its rows.
template <int kStep, int kRows, typename Work>
__device__ inline void scalesOfRows(float2 (&scales)[kRows], const float2* moments, int rows, const Work& work) {
  constexpr int kLoads = 12, kGroups = kLoads / kRows;
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
    const float mean = distances[row] * work.per_group;
    const float spread = fmaxf(fmaf(between[row], work.per_group, -mean * mean), 0.f);
    const float variance = spread + within[row] * (work.per_group / kMomentFeatures) + work.epsilon;
    const float whole = first[row] + mean;
    const float scale = rsqrtf(work.rms ? fmaf(whole, whole, variance) : variance);
    scales[row] = {scale, work.rms ? 0.f : -whole * scale};
  }
}

}  // namespace padfree
