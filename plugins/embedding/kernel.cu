// SPDX-License-Identifier: Apache-2.0
// Word, position and type rows are gathered, summed and normalised without leaving registers.
#include "embedding/table_source.cuh"
#include "embedding/warp_kernel.cuh"

namespace padfree {

cudaError_t launchEmbedding(const EmbeddingParams& params, cudaStream_t stream) {
  if (params.y_e4m3) return launchEmbeddingE4m3(params, stream);
  return dispatchActivation(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return launchRows(params, rowNormOf<T>(params), stream);
  });
}

}  // namespace padfree
