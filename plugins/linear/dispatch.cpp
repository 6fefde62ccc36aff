// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>

#include "common/launch.h"
#include "linear/cost_model.h"
#include "linear/mma/launch.h"
#include "linear/mma/menu.h"
#include "linear/sm90/launch.h"

namespace padfree {
namespace {

// Whether norms are asked for as the kernel computes them.
bool areMomentsValid(const LinearParams& p) {
  const auto isWidth = [](int width) { return width % kMomentFeatures == 0; };
  const auto isNormedWidth = [&](int width) { return isWidth(width) && width / kMomentFeatures <= kMaxMomentGroups; };
  if (p.x_moments && (p.residual_moments || !isNormedWidth(p.K))) return false;
  if (p.residual_moments && (!p.residual || !p.residual_scale || !isNormedWidth(p.N))) return false;
  if (p.moments && (!isWidth(p.N) || !p.y)) return false;
  if ((p.residual_moments || p.moments) && p.activation != Activation::kNone) return false;
  return true;
}

// Whether gates and rotated pairs are asked for as the kernel computes them.
bool arePairsValid(const LinearParams& p) {
  if (p.gated && (p.residual || p.moments || p.rotary_features > 0 || p.N % kPairBlock != 0)) return false;
  const int head = p.wide_heads ? kWideHead : kNormedHead;
  if (p.head_scale && (p.rotary_features <= 0 || p.rotary_features % head != 0 || p.scale)) return false;
  if (p.wide_heads && !p.head_scale) return false;
  if (p.rotary_features == 0) return true;
  if (p.rotary_features < 0 || p.rotary_features % kPairBlock != 0 || p.rotary_features > p.N) return false;
  return p.positions && p.frequencies && !p.residual && !p.moments && p.activation == Activation::kNone;
}

// Whether there are results, and e4m3 or int8 is asked for as the kernels compute it.
bool areTypesValid(const LinearParams& p) {
  if (p.type != DataType::kFloat16 && p.type != DataType::kBFloat16) return false;
  const void* const narrow = p.int8 ? p.y_int8 : p.y_e4m3;
  if (p.int8 ? !p.scale || p.y_e4m3 || (p.y_int8 && !p.y_factors) : p.y_int8 != nullptr) return false;
  if (!p.scale) return p.y && !p.y_e4m3;
  if (p.K % kPairBlock != 0 || p.N % kPairBlock != 0) return false;
  if (p.gated && (p.N % (2 * kPairBlock) != 0 || (p.y != nullptr) == (narrow != nullptr))) return false;
  if (p.rotary_features > 0 && (!p.y || narrow)) return false;
  if (!p.y_e4m3) return p.y || narrow;
  return p.y_scale >= kMinE4m3Scale && p.y_scale <= kMaxE4m3Scale;
}

template <typename T>
cudaError_t launchMmaOf(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream) {
  if (params.int8) return launchMma<MmaInt8<T>>(params, tiling, stream);
#ifdef PADFREE_HOPPER_ALONE
  return cudaErrorNoKernelImageForDevice;
#else
  if (params.scale) return launchMma<MmaE4m3<T>>(params, tiling, stream);
#ifdef PADFREE_FP16_SUMS
  if (tiling.fp16_sums) return launchMma<MmaFp16Sums>(params, tiling, stream);
#endif
  return launchMma<MmaHalf<T>>(params, tiling, stream);
#endif
}

bool isEmpty(const LinearParams& p) {
  return p.T <= 0 || p.N <= 0;
}

// Checks a GEMM that is not empty.
cudaError_t check(const LinearParams& p) {
  if (p.K <= 0 || p.K % 8 != 0 || p.N % 8 != 0) return cudaErrorInvalidValue;
  if (p.T > maxLinearTokens(p.N)) return cudaErrorInvalidValue;
  if (!areMomentsValid(p) || !arePairsValid(p) || !areTypesValid(p)) return cudaErrorInvalidValue;
  for (const void* data : std::initializer_list<const void*>{p.x, p.weight, p.bias, p.residual, p.x_moments,
                                                             p.residual_moments, p.y, p.y_e4m3, p.y_int8, p.moments}) {
    if (!isAligned16(data)) return cudaErrorMisalignedAddress;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t linearDevice(LinearDevice& device) {
  int major = 0;
  cudaError_t status = majorCapability(major);
#ifdef PADFREE_ARCH_90
  device.is_hopper = major == 9;
#endif
  if (status == cudaSuccess) status = countMultiprocessors(device.multiprocessors);
  if (status != cudaSuccess) return status;
  status = deviceAttribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device.shared_bytes);
  device.shared_bytes = sharedBytesInstead(device.shared_bytes);
  return status;
}

cudaError_t launchLinear(const LinearParams& params, cudaStream_t stream) {
  return launchLinear(params, kLinearAuto, stream);
}

// Engines of earlier versions may hold tilings that are no longer compiled.
cudaError_t launchLinear(const LinearParams& params, LinearChoice choice, cudaStream_t stream) {
  LinearDevice device{};
  const cudaError_t status = linearDevice(device);
  if (status != cudaSuccess) return status;
  if (!device.is_hopper || params.int8) {
    const MmaTiling tiling = mmaTilingOf(choice);
    return hasMmaTiling(params, params.T, tiling) ? launchLinearMma(params, tiling, stream)
                                                  : launchLinearMma(params, stream);
  }
  const LinearTiling tiling = tilingOf(choice);
  const bool is_chosen = choice != kLinearAuto && hasTiling(params, tiling);
  return launchLinear(params, is_chosen ? tiling : cheapestLinearTiling(params, device.multiprocessors), stream);
}

cudaError_t launchLinearMma(const LinearParams& params, cudaStream_t stream) {
  LinearDevice device{};
  const cudaError_t status = linearDevice(device);
  if (status != cudaSuccess) return status;
  return launchLinearMma(params, cheapestMmaTiling(params, device), stream);
}

cudaError_t launchLinearMma(const LinearParams& params, [[maybe_unused]] const MmaTiling& tiling,
                            [[maybe_unused]] cudaStream_t stream) {
  if (isEmpty(params)) return cudaSuccess;
  const cudaError_t status = check(params);
  if (status != cudaSuccess) return status;
  if (params.head_scale) return cudaErrorInvalidValue;
  if (!hasMmaTiling(params, params.T, tiling)) return cudaErrorInvalidValue;
  return (params.type == DataType::kFloat16 ? launchMmaOf<half> : launchMmaOf<__nv_bfloat16>)(params, tiling, stream);
}

#ifdef PADFREE_ARCH_90
namespace {

template <EpilogueKind kKind, typename T>
cudaError_t launchKind(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return (p.scale ? launchE4m3Sm90<kKind, T> : launchHalfSm90<kKind, T>)(p, tiling, stream);
}

template <typename T>
cudaError_t launchSm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  if (isResident(tiling)) {
    return (p.scale ? launchResidentE4m3Sm90<T> : launchResidentHalfSm90<T>)(p, tiling, stream);
  }
  switch (epilogueKindOf(p, partsOf(p, tiling) > 1)) {
    case EpilogueKind::kChunks:
      return launchKind<EpilogueKind::kChunks, T>(p, tiling, stream);
    case EpilogueKind::kAnyChunks:
      return launchKind<EpilogueKind::kAnyChunks, T>(p, tiling, stream);
    case EpilogueKind::kPairs:
      return launchKind<EpilogueKind::kPairs, T>(p, tiling, stream);
    case EpilogueKind::kHeads:
      return p.scale ? cudaErrorInvalidValue : launchHalfSm90<EpilogueKind::kHeads, T>(p, tiling, stream);
    case EpilogueKind::kAnyPairs:
      return launchKind<EpilogueKind::kAnyPairs, T>(p, tiling, stream);
    case EpilogueKind::kInPlace:
      return launchKind<EpilogueKind::kInPlace, T>(p, tiling, stream);
    case EpilogueKind::kAnyInPlace:
      return launchKind<EpilogueKind::kAnyInPlace, T>(p, tiling, stream);
    case EpilogueKind::kActivated:
      return launchKind<EpilogueKind::kActivated, T>(p, tiling, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launchLinear(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  if (isEmpty(p)) return cudaSuccess;
  const cudaError_t status = check(p);
  if (status != cudaSuccess) return status;
  if (p.int8 || !hasTiling(p, tiling)) return cudaErrorInvalidValue;
  return (p.type == DataType::kFloat16 ? launchSm90<half> : launchSm90<__nv_bfloat16>)(p, tiling, stream);
}
#else
cudaError_t launchLinear(const LinearParams&, const LinearTiling&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
#endif

}  // namespace padfree
