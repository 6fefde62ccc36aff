// SPDX-License-Identifier: Apache-2.0
#include "attention/kernel.h"

namespace padfree {
namespace {

// Rows that 16-byte copies can address: what every kernel asks of a 2-byte operand.
bool isVectorAligned(const AttentionOperand& operand) {
  return operand.token_stride % 8 == 0 && operand.head_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(operand.data) % 16 == 0;
}

}  // namespace

cudaError_t launchAttention(const AttentionParams& params, cudaStream_t stream) {
  if (params.T <= 0 || params.H <= 0) return cudaSuccess;
  if (params.D <= 0 || params.D > kMaxHeadSize || params.D % 8 != 0 || !(params.scale > 0.f)) {
    return cudaErrorInvalidValue;
  }
  if (params.type == DataType::kFloat32) return launchAttentionFp32(params, stream);
  if (!isVectorAligned(params.q) || !isVectorAligned(params.k) || !isVectorAligned(params.v)) {
    return cudaErrorMisalignedAddress;
  }
  return launchAttentionMma(params, stream);
}

}  // namespace padfree
