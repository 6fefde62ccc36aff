// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

enum class PoolMode : int32_t { kFirst = 0, kLast = 1, kMean = 2, kMax = 3, kEach = 4 };

struct PoolParams {
  const void* x;          // [T, E]; [B, E] with kEach
  const int* cu_seqlens;  // [B+1], starts at 0, never falls
  void* y;                // [B, E], or null with y_fp32; an empty sequence gives zeros
  int T, B, E;
  PoolMode mode;
  bool normalize;               // divide each row by max(its L2 norm, 1e-12)
  DataType type;                // of every tensor but cu_seqlens and y_fp32
  float* y_fp32 = nullptr;      // [B, E] or null: instead of y: before it is rounded
  const void* gamma = nullptr;  // [E] or null: rows of x are normed first
  const void* beta = nullptr;   // [E] or null; with gamma
  float epsilon = 0.f;
  bool rms = false;            // RMS norm: no mean is subtracted
  bool early_lengths = false;  // cu_seqlens were complete before the kernel ahead began; with gamma
};

// With gamma: E is a multiple of 8 up to 1024, type no fp32, mode not kMax; gamma and beta are constants, which are
// read before the kernels ahead have ended.
cudaError_t launchPool(const PoolParams& params, cudaStream_t stream);

// The same where there is a gamma.
cudaError_t launchNormedPool(const PoolParams& params, cudaStream_t stream);

}  // namespace padfree
