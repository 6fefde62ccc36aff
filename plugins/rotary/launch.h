// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

struct RotaryParams {
  const void* x;             // [T, W]
  const int* positions;      // [T], any
  const float* frequencies;  // [D/2]
  void* y;                   // [T, W]
  int T, W;                  // any; W of at least H * D
  int H, D;                  // heads from column 0 on, whose pairs are rotated, and their even size
  bool interleaved;          // pairs are the columns 2p and 2p + 1 of a head, else p and p + D/2
  DataType type;             // of x and y; fp32 in between
};

// Rotates pair p of every head by the angle position * frequencies[p], rounded to fp32, and copies the other columns.
cudaError_t launchRotary(const RotaryParams& params, cudaStream_t stream);

}  // namespace padfree
