// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

enum class Activation : int32_t { kNone = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3, kSilu = 4 };

constexpr int kMomentFeatures = 64;
constexpr int kMaxMomentGroups = 16;  // of rows that are normed: widths up to 1024

// Moments of rows [T,W] are floats [W/64,T,2]: mean and sum of squared deviations from it, of kMomentFeatures
// neighbours each.
struct LinearParams {
  const void* x;                  // [T,K]
  const void* weight;             // [K,N], constant: fetched while the grid before may still run
  const void* bias;               // [N] or null
  const void* residual;           // [T,N] or null, added after the activation
  const float* x_moments;         // or null: rows of x are normed to mean 0 and variance 1 + x_epsilon on their way in
  const float* column_sums;       // [N], of the weight; with x_moments
  const float* residual_moments;  // or null: rows of the residual are normed, then multiplied by residual_scale;
  const void* residual_scale;     // [N]; not together with x_moments
  void* y;                        // [T,N]
  float* moments;                 // of y, or null; these and a normed residual without activation
  int T, K, N;                    // K and N multiples of 8, of 64 where rows of such a width have moments
  float x_epsilon, residual_epsilon;
  Activation activation;
  DataType type;  // of every tensor but moments: fp16 or bf16; accumulation and what follows it in fp32
};

// y = activation(norm(x) weight + bias) + norm(residual) * scale. Hopper (sm_90a) alone; elsewhere
// cudaErrorNoKernelImageForDevice.
cudaError_t launchLinear(const LinearParams& params, cudaStream_t stream);

}  // namespace padfree
