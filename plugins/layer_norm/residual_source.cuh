// SPDX-License-Identifier: Apache-2.0
// What rows of a layer norm are the sum of, for those that leave in one type and in several.
#pragma once

#include "common/row_norm.cuh"
#include "layer_norm/launch.h"

namespace padfree {

// kAlone: x has neither bias nor residual beside it, as the norm after an encoder's last GEMM. What a row is not
// the sum of would cost it half of its instructions.
template <typename T, bool kAlone>
struct ResidualSource {
  static constexpr int kAddends = kAlone ? 1 : 3;

  const T* x;         // [rows, E]
  const T* bias;      // [E] or null
  const T* residual;  // [rows, E] or null
  int E;

  explicit ResidualSource(const LayerNormParams& params)
      : x(static_cast<const T*>(params.x)),
        bias(static_cast<const T*>(params.bias)),
        residual(static_cast<const T*>(params.residual)),
        E(params.E) {}

  // Only a single input of four vectors per thread gains (H200, E 1024).
  static constexpr bool hasHighOccupancy(int, int vectors) { return kAlone && vectors == 4; }
  bool wantsHighOccupancy() const { return true; }

  static constexpr bool kMayReadEarly = false;
  static constexpr bool kHasBlocksAhead = false;
  __host__ __device__ unsigned blocksAhead() const { return 0; }
  __device__ bool readsEarly() const { return false; }

  __device__ void prefetch() const { prefetchToL2(bias, E * sizeof(T)); }

  template <int kLanes>
  __device__ bool begin(int64_t row, const T* (&addends)[kAddends]) const {
    addends[0] = x + row * E;
    if constexpr (!kAlone) {
      addends[1] = residual ? residual + row * E : nullptr;
      addends[2] = bias;
    }
    return true;
  }
};

template <typename T, typename Norm>
cudaError_t launchResidualNorm(const LayerNormParams& params, const Norm& norm, cudaStream_t stream) {
  if (params.bias || params.residual) return launchRowNorm(ResidualSource<T, false>(params), norm, stream);
  return launchRowNorm(ResidualSource<T, true>(params), norm, stream);
}

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
