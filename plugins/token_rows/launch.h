// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"
#include "schedule/launch.h"

namespace padfree {

struct TokenRowsParams {
  const int* ids;     // [T]; an id outside the table gives zeros
  const void* table;  // [V, N]
  void* y;            // [T, N]
  float* moments;     // [N/64, T, 2] of y as it is rounded, as launchLinear gives them; or null
  int T;              // any
  int V;
  int N;  // a multiple of 64
  float scale;
  DataType type;  // fp16 or bf16, of table and y; fp32 in between
  // Where it has cu_seqlens it is made as well; without token_index and prefix.
  ScheduleParams schedule{};
};

// y = table[ids] * scale, and the tokens' schedule where it is asked for.
cudaError_t launchTokenRows(const TokenRowsParams& params, cudaStream_t stream);

}  // namespace padfree
