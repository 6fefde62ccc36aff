// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

struct ScheduleParams {
  const int* seq_lens;  // [B]; a negative length counts as 0
  int* cu_seqlens;      // [B+1], starts at 0, never falls, never above T
  int* token_index;     // [T] or null: b*S + s of each token, -1 for filler and for s >= S
  int B, T;
  int S;  // padded length, read only when token_index is given
};

// Prefix sum of the lengths, clamped to T, and on demand the padded slot of every token.
cudaError_t launchSchedule(const ScheduleParams& params, cudaStream_t stream);

}  // namespace padfree
