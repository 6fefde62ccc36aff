// SPDX-License-Identifier: Apache-2.0
#include "attention/kernels.h"
#include "common/launch.h"

namespace padfree {
namespace {

// Rows that 16-byte copies can address: what every kernel asks of a 2-byte operand.
bool isVectorAligned(const AttentionOperand& operand) {
  return operand.token_stride % 8 == 0 && operand.head_stride % 8 == 0 && isAligned16(operand.data);
}

// Every head has keys of its own, sees all of them, and nothing is added to scores.
bool isPlain(const AttentionParams& params) {
  return params.kv_heads == params.H && params.window_left < 0 && params.window_right < 0 &&
         params.bias == AttentionBias::kNone;
}

#ifdef PADFREE_ARCH_90
bool runsOnHopper() {
  int major = 0;
  return majorCapability(major) == cudaSuccess && major == 9;
}
#else
bool runsOnHopper() {
  return false;
}
#endif

}  // namespace

cudaError_t launchAttention(const AttentionParams& params, cudaStream_t stream) {
  if (params.T <= 0 || params.H <= 0) return cudaSuccess;
  if (params.D <= 0 || params.D > kMaxHeadSize || params.D % 8 != 0 || !(params.scale > 0.f)) {
    return cudaErrorInvalidValue;
  }
  if (attentionBlocks(params.T, params.B, params.H) > kMaxGridX) return cudaErrorInvalidValue;
  if (params.type == DataType::kFloat32) return launchAttentionFp32(params, stream);
  if (!isVectorAligned(params.q) || !isVectorAligned(params.k) || !isVectorAligned(params.v)) {
    return cudaErrorMisalignedAddress;
  }
  if (!runsOnHopper() || !isPlain(params)) return launchAttentionMma(params, stream);
  if (params.max_seq_len > 0 && params.max_seq_len <= kShortLength) return launchAttentionSm90Short(params, stream);
  return params.tasks ? launchAttentionSm90(params, stream) : launchAttentionMma(params, stream);
}

#ifndef PADFREE_ARCH_90
cudaError_t launchAttentionSm90(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
cudaError_t launchAttentionSm90Short(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
#endif

}  // namespace padfree
