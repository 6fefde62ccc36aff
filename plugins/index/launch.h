// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

struct IndexParams {
  const int* mask;   // [B, S], non-zero keeps the slot
  int* token_index;  // [B*S] allocated; the first num_tokens entries are written: b*S + s, ascending
  int* seq_lens;     // [B], kept slots of each row
  int* num_tokens;   // 0-D
  int B, S;          // B*S < 2^31
};

// Lists the kept slots in order. Deterministic, no workspace.
cudaError_t launchIndex(const IndexParams& params, cudaStream_t stream);

}  // namespace padfree
