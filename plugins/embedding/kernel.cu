// SPDX-License-Identifier: Apache-2.0
// Word, position and type rows are gathered, summed and normalised without leaving registers.
#include "common/row_norm.cuh"
#include "embedding/launch.h"

namespace padfree {
namespace {

template <typename T>
struct TableSource {
  EmbeddingParams p;
  const T* word = nullptr;  // rows of the tables for the token begun last; null where the id is out of range
  const T* position = nullptr;
  const T* type = nullptr;

  __device__ const T* row(const void* table, int rows, int id) const {
    const bool inside = table && id >= 0 && id < rows;
    return inside ? static_cast<const T*>(table) + static_cast<int64_t>(id) * p.E : nullptr;
  }

  __device__ bool begin(int64_t t) {
    const int token = static_cast<int>(t);
    const auto start = [&](int i) { return sequenceStart(p.cu_seqlens, i, p.T); };
    const int sequence = warpFindLast(p.B + 1, token, start);
    if (sequence == p.B) return false;  // filler
    word = row(p.word_table, p.V, p.ids[token]);
    const int index = p.positions ? p.positions[token] : token - start(sequence) + p.position_offset;
    position = row(p.position_table, p.P, index);
    type = p.token_types ? row(p.type_table, p.N, p.token_types[token]) : nullptr;
    return true;
  }

  template <int N>
  __device__ void load(int column, float (&out)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = 0.f;
    if (word) addFloats(word + column, out);
    if (position) addFloats(position + column, out);
    if (type) addFloats(type + column, out);
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
                          params.epsilon,
                          false};
    return launchRowNorm(TableSource<T>{params}, norm, stream);
  });
}

}  // namespace padfree
