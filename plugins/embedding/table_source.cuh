// SPDX-License-Identifier: Apache-2.0
// Where the rows of a token are: its word's, its position's and its type's.
#pragma once

#include "common/row_norm.cuh"
#include "embedding/launch.h"
#include "schedule/token_position.cuh"

namespace padfree {

// Word rows come from memory, and only once their ids are known: so the rows of tokens this much later are prefetched
// into the L2 cache. Half of the rows that an H200 has in flight at E 768.
constexpr int kTokensAhead = 2048;

template <typename T>
struct TableSource {
  static constexpr int kAddends = 3;

  EmbeddingRows p;

  explicit TableSource(const EmbeddingRows& params) : p(params) {
    if (!params.position_table) p.P = 0;  // no position is inside
  }

  // A row waits for its ids, then for rows of the tables: more rows in flight hide both. Rows that fill a warp are
  // warpEmbeddingKernel's.
  static constexpr bool hasHighOccupancy(int lanes, int) { return lanes < kWarpSize; }
  bool wantsHighOccupancy() const { return true; }

  static constexpr bool kMayReadEarly = true;
  static constexpr bool kHasBlocksAhead = false;
  __host__ __device__ unsigned blocksAhead() const { return 0; }
  __device__ bool readsEarly() const { return p.early_ids; }

  __device__ void prefetch() const {
    prefetchToL2(p.ids, p.T * sizeof(int));
    prefetchToL2(p.token_types, p.T * sizeof(int));
    prefetchToL2(p.positions, p.T * sizeof(int));
    prefetchToL2(p.cu_seqlens, (p.B + 1) * sizeof(int));
  }

  __device__ const T* tableRow(const void* table, int rows, int id) const {
    const bool inside = static_cast<unsigned>(id) < static_cast<unsigned>(rows);
    return inside ? static_cast<const T*>(table) + static_cast<int64_t>(id) * p.E : nullptr;
  }

  // The id kTokensAhead tokens after that one, -1 if there is none.
  __device__ int laterWord(int token) const { return token < p.T - kTokensAhead ? p.ids[token + kTokensAhead] : -1; }

  __device__ void prefetchWord(int id, int lane, int lanes) const {
    prefetchToL2(tableRow(p.word_table, p.V, id), p.E * sizeof(T), lane, lanes);
  }

  template <int kLanes>
  __device__ TokenPosition positionOf(int token) const {
    const auto start = [&](int i) { return sequenceStart(p.cu_seqlens, i, p.T); };
    const int sequence = warpFindLast<kLanes>(p.B + 1, token, start);
    return {token - start(sequence), sequence == p.B};
  }

  template <int kLanes>
  __device__ bool begin(int64_t row, const T* (&addends)[kAddends]) const {
    const int token = static_cast<int>(row);
    const int word = p.ids[token];
    const int later_word = laterWord(token);
    const int type = p.token_types ? p.token_types[token] : -1;
    if (p.early_ids) {
      prefetchWord(word, threadIdx.x % kLanes, kLanes);
      waitForPriorGrids();
    }
    const int given_position = p.positions ? p.positions[token] : 0;
    const TokenPosition token_position = positionOf<kLanes>(token);
    prefetchWord(later_word, threadIdx.x % kLanes, kLanes);
    setAddends(word, p.positions ? given_position : token_position.in_sequence + p.position_offset, type, addends);
    return !token_position.filler;
  }

 protected:
  __device__ void setAddends(int word, int position, int type, const T* (&addends)[kAddends]) const {
    addends[0] = tableRow(p.word_table, p.V, word);
    addends[1] = tableRow(p.position_table, p.P, position);
    addends[2] = tableRow(p.type_table, p.N, type);
  }
};

template <typename T>
RowNorm<T> rowNormOf(const EmbeddingRows& params) {
  return {static_cast<const T*>(params.gamma),
          static_cast<const T*>(params.beta),
          static_cast<T*>(params.y),
          nullptr,
          params.T,
          params.E,
          1.f / params.E,
          params.epsilon,
          false};
}

}  // namespace padfree
