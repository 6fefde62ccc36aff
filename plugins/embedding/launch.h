// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"
#include "schedule/launch.h"

namespace padfree {

// What rows are made of, and where they go.
struct EmbeddingRows {
  const int* ids;              // [T]
  const int* token_types;      // [T] or null
  const int* positions;        // [T] or null: counted from 0 in every sequence, plus position_offset
  const int* cu_seqlens;       // [B+1], tokens from cu_seqlens[B] on are filler and become zeros
  const void* word_table;      // [V, E]
  const void* position_table;  // [P, E] or null
  const void* type_table;      // [N, E], with token_types
  const void* gamma;           // [E]
  const void* beta;            // [E] or null
  void* y;                     // [T, E]; null where rows leave in e4m3 alone
  int T, B, E;
  int V, P, N;  // rows of the tables; an id outside its table contributes zeros
  int position_offset;
  float epsilon;
  DataType type;  // of tables, gamma, beta and y; sums and statistics are fp32
  // Whether another kernel came between those that made ids and token_types and this one: they are read while the
  // kernel ahead still runs (dependent_launch.cuh, rule 3).
  bool early_ids = false;
};

struct EmbeddingParams : EmbeddingRows {
  void* y_e4m3 = nullptr;  // [T, E] or null: y times e4m3_factor; not of fp32, nor on GPUs before 8.9
  float e4m3_factor = 1.f;
  ScheduleParams schedule{};  // where it has cu_seqlens it is made as well, and these stand for the ones above
};

// Layer norm of word + position + type embedding, and the tokens' schedule where it is asked for.
cudaError_t launchEmbedding(const EmbeddingParams& params, cudaStream_t stream);

// The same with y_e4m3.
cudaError_t launchEmbeddingE4m3(const EmbeddingParams& params, cudaStream_t stream);

}  // namespace padfree
