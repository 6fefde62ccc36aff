// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

struct PackParams {
  const void* x;           // [num_slots, row_bytes], num_slots = B*S
  const int* token_index;  // [T], slot of each token; outside [0, num_slots): the row becomes zeros
  void* y;                 // [T, row_bytes]
  int T;
  int64_t num_slots;
  int64_t row_bytes;  // any multiple of 2; multiples of 16 move in 16-byte loads
};

// y[t] = x[token_index[t]]
cudaError_t launchPack(const PackParams& params, cudaStream_t stream);

}  // namespace padfree
