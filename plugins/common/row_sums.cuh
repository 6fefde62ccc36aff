// SPDX-License-Identifier: Apache-2.0
// Sums over rows, as norms need them.
#pragma once

#include "common/device.cuh"

namespace padfree {

// Sum over the kLanes threads of a row: a part of a warp, a warp or a block.
template <int kLanes>
__device__ inline float rowSum(float x) {
  if constexpr (kLanes > kWarpSize) {
    __shared__ float scratch[kLanes / kWarpSize];
    return blockSum(x, scratch);
  } else {
    return warpSum<kLanes>(x);
  }
}

// Adds the numbers of a vector to total. A function for whole rows would change the order of the embedding's
// instructions, which costs up to 2 % of its time (docs/internals/tried-and-rejected.md).
template <int kWidth>
__device__ inline void addTo(float& total, const float (&x)[kWidth]) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) total += x[j];
}

// Subtracts the mean of a row from x unless rms; total: the sum of x. Returns the sum of the squares of this thread's
// part. inside(i): whether the row has vector i.
template <int kLanes, int kVectors, int kWidth, typename Inside>
__device__ inline float centreRow(float (&x)[kVectors][kWidth], float total, bool rms, float inverse_E,
                                  const Inside& inside) {
  const float mean = rms ? 0.f : rowSum<kLanes>(total) * inverse_E;
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      x[i][j] -= mean;
      if (inside(i)) squares += x[i][j] * x[i][j];
    }
  }
  return squares;
}

// Fills x, a thread's part of a row, vector by vector: fill(i, x[i]). Returns the sum of the squares of all of the
// row's numbers.
template <int kLanes, int kVectors, int kWidth, typename Fill>
__device__ inline float squareSum(float (&x)[kVectors][kWidth], const Fill& fill) {
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    fill(i, x[i]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares = fmaf(x[i][j], x[i][j], squares);
  }
  return rowSum<kLanes>(squares);
}

// The sum of term(e) over the E columns of a row of any width, or 0 unless wanted. Every thread of the row gets it.
// The loop is as fast as one in the kernel because `wanted` is a condition of its own, and because `lane` is given.
template <int kLanes, typename Term>
__device__ inline float rowSumOf(int lane, int E, bool wanted, const Term& term) {
  float sum = 0.f;
  for (int e = lane; wanted && e < E; e += kLanes) sum += term(e);
  return rowSum<kLanes>(sum);
}

}  // namespace padfree
