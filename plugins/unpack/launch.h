// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

struct UnpackParams {
  const void* packed;      // [T, row_bytes]
  const int* token_index;  // [T], ascending slots; entries outside [0, num_slots) (filler, -1) stand at the end
  void* y;                 // [num_slots, row_bytes], num_slots = B*S; slots without a token become zeros
  int T;
  int64_t num_slots;
  int64_t row_bytes;  // any multiple of 2; multiples of 16 move in 16-byte loads
};

// y[token_index[t]] = packed[t], zeros elsewhere. Every output byte is written exactly once.
cudaError_t launchUnpack(const UnpackParams& params, cudaStream_t stream);

}  // namespace padfree
