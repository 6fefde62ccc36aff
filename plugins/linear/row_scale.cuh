// SPDX-License-Identifier: Apache-2.0
// Norms of rows from their moments.
#pragma once

#include "common/device.cuh"
#include "linear/launch.h"

namespace padfree {

// What a row is multiplied by and what is added then, so that it has mean 0 and variance 1, or a mean square of 1. Its
// moments stand T apart, group by group; their means are added up as distances from the first. Of a kernel's work it
// reads T, groups_in, per_group (1 / groups_in), epsilon and rms.
template <typename Work>
__device__ inline float2 scaleOfRow(const float2* moments, const Work& work) {
  constexpr int kAtOnce = 8, kFew = 16;  // loads under way; groups of most models
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
  const float mean = distances * work.per_group;
  const float spread = fmaxf(fmaf(between, work.per_group, -mean * mean), 0.f);
  const float variance = spread + within * (work.per_group / kMomentFeatures) + work.epsilon;
  if (work.rms) return {rsqrtf(fmaf(first + mean, first + mean, variance)), 0.f};
  const float scale = rsqrtf(variance);
  return {scale, -(first + mean) * scale};
}

}  // namespace padfree
