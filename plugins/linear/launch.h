// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

enum class Activation : int32_t { kNone = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3, kSilu = 4 };

struct LinearParams {
  const void* x;         // [T,K]
  const void* weight;    // [K,N], constant: fetched while the grid before may still run
  const void* bias;      // [N] or null
  const void* residual;  // [T,N] or null, added after the activation
  void* y;               // [T,N]
  int T, K, N;           // K and N multiples of 8: TMA rows start at multiples of 16 bytes
  Activation activation;
  DataType type;  // of every tensor: fp16 or bf16; accumulation, bias, activation and residual in fp32
};

// y = activation(x weight + bias) + residual. Hopper (sm_90a) alone; elsewhere cudaErrorNoKernelImageForDevice.
cudaError_t launchLinear(const LinearParams& params, cudaStream_t stream);

}  // namespace padfree
