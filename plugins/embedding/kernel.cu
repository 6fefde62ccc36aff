// SPDX-License-Identifier: Apache-2.0
// Word, position and type rows are gathered, summed and normalised without leaving registers.
#include "embedding/table_source.cuh"
#include "embedding/warp_kernel.cuh"

namespace padfree {
namespace {

template <typename T, int kVectors>
cudaError_t launchWarpEmbedding(const TableSource<T>& source, cudaStream_t stream) {
  const int blocks = ceilDiv(source.p.T, kRowNormThreads / kWarpSize);
  return launchDependent(warpEmbeddingKernel<T, kVectors>, blocks, kRowNormThreads, 0, stream, source);
}

}  // namespace

cudaError_t launchEmbedding(const EmbeddingParams& params, cudaStream_t stream) {
  return dispatchActivation(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const RowNorm<T> norm{static_cast<const T*>(params.gamma),
                          static_cast<const T*>(params.beta),
                          static_cast<T*>(params.y),
                          nullptr,
                          params.T,
                          params.E,
                          1.f / params.E,
                          params.epsilon,
                          false};
    TableSource<T> source{params};
    if (!params.position_table) source.p.P = 0;  // no position is inside
    if (params.T <= 0) return cudaSuccess;
    constexpr int kWarpWidth = kWarpSize * kVectorBytes / sizeof(T);
    if (params.E == 3 * kWarpWidth) return launchWarpEmbedding<T, 3>(source, stream);
    if (params.E == 4 * kWarpWidth) return launchWarpEmbedding<T, 4>(source, stream);
    return launchRowNorm(source, norm, stream);
  });
}

}  // namespace padfree
