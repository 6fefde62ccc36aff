// SPDX-License-Identifier: Apache-2.0
// Moments of rows, by kernels whose threads hold eight neighbouring numbers of a row in half precision.
#pragma once

#include "common/device.cuh"
#include "common/row_sums.cuh"
#include "linear/launch.h"

namespace padfree {

constexpr int kMomentWidth = kVectorBytes / 2;               // numbers in a vector
constexpr int kGroupLanes = kMomentFeatures / kMomentWidth;  // threads whose vectors are a group of moments

// Mean and sum of squared deviations from it, of the numbers of kGroupLanes neighbouring threads.
__device__ inline float2 momentsOf(const float (&x)[kMomentWidth]) {
  float sum = 0.f, squares = 0.f;
  addTo(sum, x);
  const float mean = rowSum<kGroupLanes>(sum) / kMomentFeatures;
#pragma unroll
  for (int k = 0; k < kMomentWidth; ++k) squares = fmaf(x[k] - mean, x[k] - mean, squares);
  return {mean, rowSum<kGroupLanes>(squares)};
}

}  // namespace padfree
