// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

// tanh(y_first weight^T + bias), where y_first are rows of y of sequences' first tokens, as they are rounded.
struct PoolerParams {
  const void* weight = nullptr;  // [N, E]
  const void* bias = nullptr;    // [N]
  float* y = nullptr;            // [B, N]; null: there is no pooler
  int N = 0;
};

struct LayerNormParams {
  const void* x;         // [rows, E]
  const void* bias;      // [E] or null
  const void* residual;  // [rows, E] or null
  const void* gamma;     // [E]
  const void* beta;      // [E] or null
  void* y;               // [rows, E]; null where rows leave in e4m3 or fp32 alone
  void* sum;             // [rows, E] or null: x + bias + residual
  int64_t rows;
  int E;  // any; multiples of 8 take the one-pass path
  float epsilon;
  bool rms;                // RMS norm: no mean is subtracted
  DataType type;           // of every tensor but y_e4m3, y_fp32 and cu_seqlens; sums and statistics are fp32
  void* y_e4m3 = nullptr;  // [rows, E] or null: y times e4m3_factor; not of fp32, nor on GPUs before 8.9
  float e4m3_factor = 1.f;
  float* y_fp32 = nullptr;  // [rows, E] or null: y before it is rounded; not of fp32, nor beside y_e4m3
  void* y_first = nullptr;  // [B, E] or null: rows of y of sequences' first tokens, zeros for an empty one; with y_fp32
  const int* cu_seqlens = nullptr;  // [B+1], starts at 0, never falls; with y_first or pooler.y, of rows below 2^31
  int B = 0;
  bool early_lengths = false;  // cu_seqlens were complete before the kernel ahead began
  // With y_fp32 and without y_first, bias, residual; E is a multiple of 8. Its weights, gamma and beta are constants:
  // they are read before the kernels ahead have ended.
  PoolerParams pooler{};
};

// y = norm(x + bias + residual) * gamma + beta in one pass over the activations.
cudaError_t launchLayerNorm(const LayerNormParams& params, cudaStream_t stream);

// The same with y_e4m3.
cudaError_t launchLayerNormE4m3(const LayerNormParams& params, cudaStream_t stream);

// The same with y_fp32.
cudaError_t launchLayerNormFp32(const LayerNormParams& params, cudaStream_t stream);

}  // namespace padfree
