// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

struct LayerNormParams {
  const void* x;         // [rows, E]
  const void* bias;      // [E] or null
  const void* residual;  // [rows, E] or null
  const void* gamma;     // [E]
  const void* beta;      // [E] or null
  void* y;               // [rows, E]
  void* sum;             // [rows, E] or null: x + bias + residual
  int64_t rows;
  int E;  // any; multiples of 8 take the one-pass path
  float epsilon;
  bool rms;       // RMS norm: no mean is subtracted
  DataType type;  // of every tensor; sums and statistics are fp32
};

// y = norm(x + bias + residual) * gamma + beta in one pass over the activations.
cudaError_t launchLayerNorm(const LayerNormParams& params, cudaStream_t stream);

}  // namespace padfree
