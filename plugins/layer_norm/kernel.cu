// SPDX-License-Identifier: Apache-2.0
// Bias + residual + layer norm in one pass (ByteTransformer, arXiv 2210.03052, section III.C).
#include "layer_norm/residual_source.cuh"

namespace padfree {

cudaError_t launchLayerNorm(const LayerNormParams& params, cudaStream_t stream) {
  if (params.y_e4m3) return launchLayerNormE4m3(params, stream);
  if (params.y_fp32) return launchLayerNormFp32(params, stream);
  return dispatchActivation(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return launchResidualNorm<T>(params, rowNormOf<T>(params), stream);
  });
}

}  // namespace padfree
