// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/e4m3.h"
#include "common/types.h"

namespace padfree {

enum class Activation : int32_t { kNone = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3, kSilu = 4, kSigmoid = 5 };

struct MmaTiling;

constexpr int kMomentFeatures = 64;
constexpr int kMaxMomentGroups = 64;  // of rows that are normed: widths up to 4096
constexpr int kNormedHead = 128, kWideHead = 256;
constexpr int kLinearScratchBytes = 256 * (8 + 16 * 64 * 4);  // linear/mma/menu.h says of what
constexpr int kLinearTailScratchBytes = 256 * 8 + 192 * 128 * 128 * 4;
constexpr int kPairBlock = 16;  // columns: 8, and the 8 that belong to them, where two columns make a result or a pair

// Pointers but scale, residual_scale, positions and frequencies are multiples of 16 bytes.
//
// Moments of rows [T,W] are floats [W/64,T,2]: mean and sum of squared deviations from it, of kMomentFeatures
// neighbours each.
struct LinearParams {
  const void* x;           // [T,K]
  const void* weight;      // [K,N], constant: fetched while the grid before may still run
  const float* scale;      // [N]: x and weight, which is [N,K], are e4m3 or int8, and the sums are multiplied by it; or
                           // null
  const void* bias;        // [N] or null
  const void* residual;    // [T,N] or null, added after the activation
  const float* x_moments;  // or null: rows of x are divided by their deviation, a variance of x_epsilon added; their
                           // mean is the weight's to take away: the sum of each of its columns is to be 0
  const float* residual_moments;  // or null: rows of the residual are normed, then multiplied by residual_scale;
  const void* residual_scale;     // [N]; not together with x_moments
  const int* positions;           // [T], with rotary_features
  const float* frequencies;       // [rotary_features / 2]
  const void* head_scale;  // [rotary_features] or null: before they are rotated, heads of kNormedHead features, or of
                           // kWideHead, are divided by their root mean square, head_epsilon added to the square,
                           // and multiplied by this; only on Hopper, not with scale
  void* y;                 // [T,N]; [T,N/2] where gated; or null where y_e4m3 is not
  void* y_e4m3;            // results divided by y_scale as e4m3, with scale; or null
  void* y_int8;            // results multiplied by y_factors as int8, with int8; or null
  const float* y_factors;  // [N]; [N/2] where gated
  float* moments;          // of y, or null; these and a normed residual without activation
  void* scratch;           // kLinearScratchBytes, of any contents, or null: then no blocks share a tile. A choice with
                           // a tail (hasMmaTail) takes kLinearTailScratchBytes
  int T, K, N;             // K and N multiples of 8, of 16 with scale, of 64 where such rows have moments
  int rotary_features;     // columns from the first on, in blocks of kPairBlock, whose pairs are rotated; 0: none
  float x_epsilon, residual_epsilon, head_epsilon, y_scale;
  Activation activation;
  bool int8;        // x and weight are int8; only launchLinearMma has kernels for it
  bool gated;       // columns in blocks of kPairBlock, u and v: y is activation(u) * v; no residual, no moments
  bool rms;         // rows are divided by the root of their mean square, and the residual keeps its mean
  bool wide_heads;  // heads that are normed have kWideHead features
  DataType type;    // of every other tensor but moments: fp16 or bf16; accumulation and what follows it in fp32
};

// y = activation(norm(x) weight + bias) + norm(residual) * scale, its pairs rotated by position * frequency, or gated.
cudaError_t launchLinear(const LinearParams& params, cudaStream_t stream);

// The same by mma.sync, which launchLinear takes where there is no Hopper: compute capability 8.0 and newer, with scale
// 8.9 and newer, unless it is for int8; elsewhere cudaErrorNoKernelImageForDevice. It runs on Hopper too, unless the
// library is for Hopper alone, which has it for int8 only.
cudaError_t launchLinearMma(const LinearParams& params, cudaStream_t stream);

// The same with this tiling (linear/mma/menu.h); cudaErrorInvalidValue where there is no kernel with it.
cudaError_t launchLinearMma(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream);

}  // namespace padfree
