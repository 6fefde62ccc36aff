// SPDX-License-Identifier: Apache-2.0
// Layer norms of rows in half precision that leave in fp32, alone or beside those in half precision: all of them, or
// those of sequences' first tokens, or what a pooler makes of these.
#include "layer_norm/pooled_source.cuh"

namespace padfree {

cudaError_t launchLayerNormFp32(const LayerNormParams& params, cudaStream_t stream) {
  return dispatchHalf(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Fp32Rows rows{params.y_fp32, params.y_first, params.cu_seqlens, params.y_first ? params.B : 0};
    const TwoTypeRowNorm<T, Fp32Rows> norm{rowNormOf<T>(params), rows};
    if (params.pooler.y) return launchPooledNorm<T>(params, norm, stream);
    return launchResidualNorm<T>(params, norm, stream);
  });
}

}  // namespace padfree
