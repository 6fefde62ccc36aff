// SPDX-License-Identifier: Apache-2.0
#include "attention/kernels.h"
#include "common/launch.h"

namespace padfree {
namespace {

// Rows that 16-byte copies can address: what every kernel asks of a 2-byte operand.
bool isVectorAligned(const AttentionOperand& operand) {
  return operand.token_stride % 8 == 0 && operand.head_stride % 8 == 0 && isAligned16(operand.data);
}

// What the Hopper kernels can do; the kernel on mma.sync takes the rest.
bool fitsHopper(const AttentionParams& params) {
  return params.D <= kMaxHopperHeadSize &&
         (params.bias != AttentionBias::kDistance || params.bias_range <= kMaxHopperBiasRange);
}

// What the Hopper kernel for wide heads is for.
bool hasWideHeads(const AttentionParams& params) {
  return params.D > kMaxHopperHeadSize && params.bias == AttentionBias::kNone;
}

// Whether everything that a bias reads is given, and nothing that it excludes.
bool hasBias(const AttentionParams& params) {
  if (params.bias == AttentionBias::kSlope) return params.slopes;
  if (params.bias == AttentionBias::kDisentangled) {
    return params.bias_range >= 0 && params.D <= kMaxDisentangledHeadSize && params.kv_heads == params.H &&
           params.window_left < 0 && params.window_right < 0;
  }
  return params.bias == AttentionBias::kNone || (params.distance_bias && params.bias_range >= 0);
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
  if (params.e4m3_factor > 0.f && params.type == DataType::kFloat32) return cudaErrorNotSupported;
  if (params.kv_heads <= 0 || params.H % params.kv_heads != 0 || !hasBias(params)) return cudaErrorInvalidValue;
  if (attentionBlocks(params.T, params.B, params.H) > kMaxGridX) return cudaErrorInvalidValue;
  if (params.prefix && (params.window_right != 0 || params.bias == AttentionBias::kDisentangled)) {
    return cudaErrorInvalidValue;
  }
  if (params.type == DataType::kFloat32) return launchAttentionFp32(params, stream);
  if (!isVectorAligned(params.q) || !isVectorAligned(params.k) || !isVectorAligned(params.v)) {
    return cudaErrorMisalignedAddress;
  }
  if (params.prefix) {
    return runsOnHopper() ? launchAttentionSm90Prefix(params, stream) : launchAttentionMma(params, stream);
  }
  if (params.bias == AttentionBias::kDisentangled) {
    return runsOnHopper() && params.D <= kMaxHopperDisentangledHeadSize
               ? launchAttentionSm90Disentangled(params, stream)
               : launchAttentionDisentangled(params, stream);
  }
  if (runsOnHopper() && hasWideHeads(params)) return launchAttentionSm90Wide(params, stream);
  if (!runsOnHopper() || !fitsHopper(params)) return launchAttentionMma(params, stream);
  if (params.max_seq_len > 0 && params.max_seq_len <= kShortLength) return launchAttentionSm90Short(params, stream);
  if (seesNearKeys(params)) return launchAttentionSm90Window(params, stream);
  return params.tasks ? launchAttentionSm90(params, stream) : launchAttentionMma(params, stream);
}

#ifdef PADFREE_HOPPER_ALONE
template <typename T>
cudaError_t launchMmaPrefix(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
#endif

cudaError_t launchAttentionMma(const AttentionParams& params, cudaStream_t stream) {
  if (params.prefix) {
    return (params.type == DataType::kFloat16 ? launchMmaPrefix<half> : launchMmaPrefix<__nv_bfloat16>)(params, stream);
  }
  return (params.type == DataType::kFloat16 ? launchMma<half> : launchMma<__nv_bfloat16>)(params, stream);
}

#ifdef PADFREE_ARCH_90
cudaError_t launchAttentionSm90(const AttentionParams& params, cudaStream_t stream) {
  return (params.type == DataType::kFloat16 ? launchRingSm90<half> : launchRingSm90<__nv_bfloat16>)(params, stream);
}
cudaError_t launchAttentionSm90Short(const AttentionParams& params, cudaStream_t stream) {
  return (params.type == DataType::kFloat16 ? launchShortSm90<half> : launchShortSm90<__nv_bfloat16>)(params, stream);
}
cudaError_t launchAttentionSm90Wide(const AttentionParams& params, cudaStream_t stream) {
  return (params.type == DataType::kFloat16 ? launchWideSm90<half> : launchWideSm90<__nv_bfloat16>)(params, stream);
}
cudaError_t launchAttentionSm90Prefix(const AttentionParams& params, cudaStream_t stream) {
  return (params.type == DataType::kFloat16 ? launchPrefixSm90<half> : launchPrefixSm90<__nv_bfloat16>)(params, stream);
}
#else
cudaError_t launchAttentionSm90Prefix(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
cudaError_t launchAttentionSm90Wide(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
cudaError_t launchAttentionSm90(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
cudaError_t launchAttentionSm90Short(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
cudaError_t launchAttentionSm90Window(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
cudaError_t launchAttentionSm90Disentangled(const AttentionParams&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
#endif

}  // namespace padfree
