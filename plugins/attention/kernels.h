// SPDX-License-Identifier: Apache-2.0
// The kernels behind launchAttention, one compilation unit each.
#pragma once

#include "attention/launch.h"

namespace padfree {

// fp16 and bf16 on tensor cores, sm_80 and newer (mma.sync).
cudaError_t launchAttentionMma(const AttentionParams& params, cudaStream_t stream);

// fp16 and bf16 on Hopper (wgmma and TMA, sm_90a); wants tasks.
cudaError_t launchAttentionSm90(const AttentionParams& params, cudaStream_t stream);

// The same for 1 <= max_seq_len <= kShortLength, which is what fits on chip of a sequence; wants no tasks.
cudaError_t launchAttentionSm90Short(const AttentionParams& params, cudaStream_t stream);
constexpr int kShortLength = 128;

// fp32 in plain FMA: for correctness, not for speed.
cudaError_t launchAttentionFp32(const AttentionParams& params, cudaStream_t stream);

}  // namespace padfree
