// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

struct QkNormRotaryParams {
  const void* qkv;           // [T, W]
  const void* q_gamma;       // [D]
  const void* k_gamma;       // [D]
  const int* positions;      // [T], any
  const float* frequencies;  // [D/2]
  void* qk;                  // [T, (H + kv_heads) * D], not part of qkv
  int T, W;                  // any; W of at least (H + kv_heads) * D
  int H, kv_heads, D;        // heads of Q from column 0 on, those of K behind them, and their even size
  float epsilon;
  bool interleaved;  // pairs are the columns 2p and 2p + 1 of a head, else p and p + D/2
  DataType type;     // of qkv, gammas and qk; fp32 in between
};

// Divides every head of Q and K by its root mean square, multiplies it by its gamma, and rotates it as launchRotary
// does.
cudaError_t launchQkNormRotary(const QkNormRotaryParams& params, cudaStream_t stream);

}  // namespace padfree
