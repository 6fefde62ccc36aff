// SPDX-License-Identifier: Apache-2.0
// What rows of a layer norm are the sum of, for those that leave in one type and in several.
#pragma once

#include "common/row_norm.cuh"
#include "layer_norm/launch.h"

namespace padfree {

template <typename T>
struct ResidualSource {
  const T* x;         // [rows, E]
  const T* bias;      // [E] or null
  const T* residual;  // [rows, E] or null
  int E;

  explicit ResidualSource(const LayerNormParams& params)
      : x(static_cast<const T*>(params.x)),
        bias(static_cast<const T*>(params.bias)),
        residual(static_cast<const T*>(params.residual)),
        E(params.E) {}

  // Only a single input of four vectors a thread gains (H200, E 1024).
  static constexpr bool mayCrowd(int, int vectors) { return vectors == 4; }
  bool crowds() const { return !residual; }

  static constexpr bool kMayReadEarly = false;
  __device__ bool readsEarly() const { return false; }

  __device__ void prefetch() const { prefetchToL2(bias, E * sizeof(T)); }

  template <int kLanes>
  __device__ bool begin(int64_t row, const T* (&addends)[kRowAddends]) const {
    addends[0] = x + row * E;
    addends[1] = residual ? residual + row * E : nullptr;
    addends[2] = bias;
    return true;
  }
};

template <typename T>
RowNorm<T> rowNormOf(const LayerNormParams& params) {
  return {static_cast<const T*>(params.gamma),
          static_cast<const T*>(params.beta),
          static_cast<T*>(params.y),
          static_cast<T*>(params.sum),
          params.rows,
          params.E,
          1.f / params.E,
          params.epsilon,
          params.rms};
}

}  // namespace padfree
