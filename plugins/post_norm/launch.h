// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

struct PostNormParams {
  const void* x;         // [T, N]
  const void* residual;  // [T, N]
  const void* gamma;     // [N], constant: read before the kernels ahead have ended
  void* y;               // [T, N]; may be the residual
  float* moments;        // [N/64, T, 2] of y as it is rounded, as launchLinear gives them; or null
  int T;                 // any
  int N;                 // a multiple of 64 up to 4096
  float epsilon;
  DataType type;  // fp16 or bf16, of all but moments; fp32 in between
};

// y = residual + x * gamma / sqrt(mean of x^2 + epsilon), rows being normed.
cudaError_t launchPostNorm(const PostNormParams& params, cudaStream_t stream);

}  // namespace padfree
