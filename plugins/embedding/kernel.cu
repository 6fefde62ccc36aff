// SPDX-License-Identifier: Apache-2.0
// Word, position and type rows are gathered, summed and normalised without leaving registers.
#include "common/row_norm.cuh"
#include "embedding/launch.h"

namespace padfree {
namespace {

template <typename T>
struct TableSource {
  EmbeddingParams p;

  __device__ void prefetch() const {}

  __device__ const T* tableRow(const void* table, int rows, int id) const {
    const bool inside = table && id >= 0 && id < rows;
    return inside ? static_cast<const T*>(table) + static_cast<int64_t>(id) * p.E : nullptr;
  }

  template <int kLanes>
  __device__ bool begin(int64_t row, const T* (&addends)[kRowAddends]) const {
    const int token = static_cast<int>(row);
    const int word = p.ids[token];
    const int type = p.token_types ? p.token_types[token] : -1;
    const int given_position = p.positions ? p.positions[token] : 0;
    const auto start = [&](int i) { return sequenceStart(p.cu_seqlens, i, p.T); };
    const int sequence = warpFindLast<kLanes>(p.B + 1, token, start);
    if (sequence == p.B) return false;  // filler
    addends[0] = tableRow(p.word_table, p.V, word);
    addends[1] =
        tableRow(p.position_table, p.P, p.positions ? given_position : token - start(sequence) + p.position_offset);
    addends[2] = tableRow(p.type_table, p.N, type);
    return true;
  }
};

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
    return launchRowNorm(TableSource<T>{params}, norm, stream);
  });
}

}  // namespace padfree
