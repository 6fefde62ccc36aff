// SPDX-License-Identifier: Apache-2.0
#include "attention/kernel.h"

namespace padfree {
namespace {

// Rows that 16-byte copies can address: what every kernel asks of a 2-byte operand.
bool isVectorAligned(const AttentionOperand& operand) {
  return operand.token_stride % 8 == 0 && operand.head_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(operand.data) % 16 == 0;
}

// Sequences up to this length leave half of a Hopper tile of 128 rows empty; the mma kernel has tiles of 64.
constexpr int kShort = 64;
constexpr int kHopper = 9;

bool wantsSm90(const AttentionParams& params) {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return false;
  const bool may_be_long = params.max_seq_len == 0 || params.max_seq_len > kShort;
  return major == kHopper && may_be_long && params.D > 32;
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
  return wantsSm90(params) ? launchAttentionSm90(params, stream) : launchAttentionMma(params, stream);
}

}  // namespace padfree
