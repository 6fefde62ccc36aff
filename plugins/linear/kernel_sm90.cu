// SPDX-License-Identifier: Apache-2.0
#include "common/launch.h"
#include "linear/cut.cuh"
#include "linear/sm90_launch.h"

namespace padfree {
namespace {

// Whether norms are asked for as the kernel computes them.
bool areMomentsValid(const LinearParams& p) {
  const auto isWidth = [](int width) { return width % kGroupFeatures == 0; };
  const auto isNormedWidth = [&](int width) { return isWidth(width) && width / kGroupFeatures <= kMaxMomentGroups; };
  if (p.x_moments && (!p.column_sums || p.residual_moments || !isNormedWidth(p.K))) return false;
  if (p.residual_moments && (!p.residual || !p.residual_scale || !isNormedWidth(p.N))) return false;
  if (p.moments && !isWidth(p.N)) return false;
  if ((p.residual_moments || p.moments) && p.activation != Activation::kNone) return false;
  return true;
}

}  // namespace

cudaError_t launchLinearSm90(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
  if (p.T <= 0 || p.N <= 0) return cudaSuccess;
  if (p.K <= 0 || p.K % 8 != 0 || p.N % 8 != 0) return cudaErrorInvalidValue;
  if (!areMomentsValid(p)) return cudaErrorInvalidValue;
  for (const void* data : {p.x, p.weight, p.residual, static_cast<const void*>(p.y)}) {
    if (!isAligned16(data)) return cudaErrorMisalignedAddress;
  }
  if (p.type == DataType::kFloat16) return launchTileSm90<half>(p, tile, stream);
  if (p.type == DataType::kBFloat16) return launchTileSm90<__nv_bfloat16>(p, tile, stream);
  return cudaErrorInvalidValue;
}

}  // namespace padfree
