// SPDX-License-Identifier: Apache-2.0
// Layer norms whose rows leave in e4m3, alone or beside those in half precision.
#include "layer_norm/residual_source.cuh"

namespace padfree {

cudaError_t launchLayerNormE4m3(const LayerNormParams& params, cudaStream_t stream) {
  return dispatchHalf(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const TwoTypeRowNorm<T, E4m3Rows> norm{rowNormOf<T>(params),
                                           {static_cast<unsigned char*>(params.y_e4m3), params.e4m3_factor}};
    return launchResidualNorm<T>(params, norm, stream);
  });
}

}  // namespace padfree
