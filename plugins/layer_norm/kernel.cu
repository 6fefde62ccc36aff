// SPDX-License-Identifier: Apache-2.0
// Bias + residual + layer norm in one pass (ByteTransformer, arXiv 2210.03052, section III.C).
#include "common/row_norm.cuh"
#include "layer_norm/launch.h"

namespace padfree {
namespace {

template <typename T>
struct ResidualSource {
  const T* x;         // [rows, E]
  const T* bias;      // [E] or null
  const T* residual;  // [rows, E] or null
  int E;

  // Only a single input of four vectors a thread gains (H200, E 1024).
  static constexpr bool mayCrowd(int, int vectors) { return vectors == 4; }
  bool crowds() const { return !residual; }

  __device__ void prefetch() const { prefetchToL2(bias, E * sizeof(T)); }

  template <int kLanes>
  __device__ bool begin(int64_t row, const T* (&addends)[kRowAddends]) const {
    addends[0] = x + row * E;
    addends[1] = residual ? residual + row * E : nullptr;
    addends[2] = bias;
    return true;
  }
};

}  // namespace

cudaError_t launchLayerNorm(const LayerNormParams& params, cudaStream_t stream) {
  return dispatchActivation(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const ResidualSource<T> source{static_cast<const T*>(params.x), static_cast<const T*>(params.bias),
                                   static_cast<const T*>(params.residual), params.E};
    const RowNorm<T> norm{static_cast<const T*>(params.gamma),
                          static_cast<const T*>(params.beta),
                          static_cast<T*>(params.y),
                          static_cast<T*>(params.sum),
                          params.rows,
                          params.E,
                          1.f / params.E,
                          params.epsilon,
                          params.rms};
    return launchRowNorm(source, norm, stream);
  });
}

}  // namespace padfree
