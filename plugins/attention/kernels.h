// SPDX-License-Identifier: Apache-2.0
// The kernels that launchAttention chooses among, one compilation unit each.
#pragma once

#include "attention/launch.h"

namespace padfree {

// Whether the library is for Hopper alone (PADFREE_HOPPER_ALONE). Hopper's own kernels then take nearly everything, and
// the general ones are compiled only in the shapes for the rest.
#ifdef PADFREE_HOPPER_ALONE
constexpr bool kHopperAlone = true;
#else
constexpr bool kHopperAlone = false;
#endif

// Query tiles can be ordered by the length of at most so many sequences (query_tiles.cuh).
constexpr int kMaxOrdered = 31;

// Whether scores depend on the positions of rows and keys.
inline bool hasPositions(const AttentionParams& params) {
  return params.window_left >= 0 || params.window_right >= 0 || params.bias != AttentionBias::kNone;
}

// fp16 and bf16 on tensor cores, sm_80 and newer (mma.sync), with prefixes too. A file that names PADFREE_ELEMENT is
// compiled for both types.
cudaError_t launchAttentionMma(const AttentionParams& params, cudaStream_t stream);
template <typename T>
cudaError_t launchMma(const AttentionParams& params, cudaStream_t stream);

// The same for sequences that continue others (prefix); causal, with a window on the left and any but a disentangled
// bias. A library for Hopper alone does not have it.
template <typename T>
cudaError_t launchMmaPrefix(const AttentionParams& params, cudaStream_t stream);

// fp16 and bf16 on Hopper (wgmma and TMA, sm_90a); needs tasks. Like the kernels for short sequences and small windows
// below, it takes heads of up to kMaxHopperHeadSize and tables of distances up to kMaxHopperBiasRange.
cudaError_t launchAttentionSm90(const AttentionParams& params, cudaStream_t stream);
template <typename T>
cudaError_t launchRingSm90(const AttentionParams& params, cudaStream_t stream);
constexpr int kMaxHopperHeadSize = 128, kMaxHopperBiasRange = 512;

// The same for heads of up to kMaxHeadSize, with windows but without biases; needs no tasks.
cudaError_t launchAttentionSm90Wide(const AttentionParams& params, cudaStream_t stream);
template <typename T>
cudaError_t launchWideSm90(const AttentionParams& params, cudaStream_t stream);

// The same for sequences that continue others (prefix), with all that launchMmaPrefix takes.
cudaError_t launchAttentionSm90Prefix(const AttentionParams& params, cudaStream_t stream);
template <typename T>
cudaError_t launchPrefixSm90(const AttentionParams& params, cudaStream_t stream);

// The same for 1 <= max_seq_len <= kShortLength, up to which all of a sequence fits on chip; needs no tasks.
cudaError_t launchAttentionSm90Short(const AttentionParams& params, cudaStream_t stream);
template <typename T>
cudaError_t launchShortSm90(const AttentionParams& params, cudaStream_t stream);
constexpr int kShortLength = 128;

// The same where rows see at most kNearKeys on each side and nothing is added to scores; needs no tasks.
cudaError_t launchAttentionSm90Window(const AttentionParams& params, cudaStream_t stream);
constexpr int kNearKeys = 64;
inline bool seesNearKeys(const AttentionParams& params) {
  const auto near = [](int window) { return window >= 0 && window <= kNearKeys; };
  return near(params.window_left) && near(params.window_right) && params.bias == AttentionBias::kNone;
}

// fp16 and bf16 with a disentangled bias, on mma.sync.
cudaError_t launchAttentionDisentangled(const AttentionParams& params, cudaStream_t stream);

// The same on Hopper, for heads of up to kMaxHopperDisentangledHeadSize.
cudaError_t launchAttentionSm90Disentangled(const AttentionParams& params, cudaStream_t stream);
constexpr int kMaxHopperDisentangledHeadSize = 64;

// fp32 in plain FMA: for correctness, not for speed.
cudaError_t launchAttentionFp32(const AttentionParams& params, cudaStream_t stream);

}  // namespace padfree
