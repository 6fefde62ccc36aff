// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

enum class PoolMode : int32_t { kFirst = 0, kLast = 1, kMean = 2, kMax = 3 };

struct PoolParams {
  const void* x;          // [T, E]
  const int* cu_seqlens;  // [B+1], starts at 0, never falls
  void* y;                // [B, E]; an empty sequence gives zeros
  int T, B, E;
  PoolMode mode;
  bool normalize;  // divide each row by max(its L2 norm, 1e-12)
  DataType type;
};

cudaError_t launchPool(const PoolParams& params, cudaStream_t stream);

}  // namespace padfree
