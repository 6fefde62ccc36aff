// SPDX-License-Identifier: Apache-2.0
// Embeddings whose rows leave in e4m3, alone or beside those in half precision.
#include "embedding/table_source.cuh"
#include "embedding/warp_kernel.cuh"

namespace padfree {

cudaError_t launchEmbeddingE4m3(const EmbeddingParams& params, cudaStream_t stream) {
  return dispatchHalf(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const TwoTypeRowNorm<T, E4m3Rows> norm{rowNormOf<T>(params),
                                           {static_cast<unsigned char*>(params.y_e4m3), params.e4m3_factor}};
    return launchRows(params, norm, stream);
  });
}

}  // namespace padfree
