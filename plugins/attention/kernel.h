// SPDX-License-Identifier: Apache-2.0
// The kernels behind launchAttention, one compilation unit each.
#pragma once

#include "attention/launch.h"

namespace padfree {

// What the general kernel chooses its tiles by: the length that the build expects, or else the mean.
inline int expectedLength(const AttentionParams& params) {
  return params.max_seq_len > 0 ? params.max_seq_len : params.T / (params.B > 0 ? params.B : 1);
}

// fp16 and bf16 on tensor cores, sm_80 and newer (mma.sync).
cudaError_t launchAttentionMma(const AttentionParams& params, cudaStream_t stream);

// fp16 and bf16 on Hopper (wgmma and TMA, sm_90a); wants tasks.
cudaError_t launchAttentionSm90(const AttentionParams& params, cudaStream_t stream);

// The same where sequences are short: wants no tasks, and has room for kShortLength tokens of a sequence on chip.
cudaError_t launchAttentionSm90Short(const AttentionParams& params, cudaStream_t stream);
constexpr int kShortLength = 128;

// fp32 in plain FMA: for correctness, not for speed.
cudaError_t launchAttentionFp32(const AttentionParams& params, cudaStream_t stream);

}  // namespace padfree
