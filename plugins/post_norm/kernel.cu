// SPDX-License-Identifier: Apache-2.0
// The RMS norm of what a layer adds to its residual stream, and that sum, in one pass bound by memory. Moments of the
// sum let the GEMMs that follow apply the norm that stands before them.
#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "common/moments.cuh"
#include "common/row_norm.cuh"
#include "post_norm/launch.h"

namespace padfree {
namespace {

constexpr int kWidth = kMomentWidth;
constexpr int kMaxWidth = kMomentFeatures * kMaxMomentGroups;

// kLanes threads for a row, with kVectors vectors each. All loads of a row are in flight before the first is used.
template <typename T, int kLanes, int kVectors>
__global__ void __launch_bounds__(kRowNormThreads) postNormKernel(PostNormParams p) {
  const int lane = threadIdx.x % kLanes;
  const int64_t row = int64_t{blockIdx.x} * (kRowNormThreads / kLanes) + threadIdx.x / kLanes;
  const auto column = [&](int i) { return (i * kLanes + lane) * kWidth; };
  const auto inside = [&](int i) { return column(i) < p.N; };
  const auto rowIn = [&](const void* data) { return row < p.T ? static_cast<const T*>(data) + row * p.N : nullptr; };
  uint4 gamma[kVectors], x[kVectors], residual[kVectors];
  loadVectors(static_cast<const T*>(p.gamma), gamma, column, inside);
  waitForPriorGrids();
  loadVectors(rowIn(p.x), x, column, inside);
  loadVectors(rowIn(p.residual), residual, column, inside);
  releaseNextGrid();
  float value[kVectors][kWidth];
  const auto unpack = [&](int i, float (&numbers)[kWidth]) { unpackFloats<T>(x[i], numbers); };
  const float factor = rsqrtf(squareSum<kLanes>(value, unpack) / p.N + p.epsilon);
  float2* const moments = reinterpret_cast<float2*>(p.moments);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float scale[kWidth], sum[kWidth];
    unpack(i, value[i]);  // once more: kept, the numbers would take twice the registers of x
    unpackFloats<T>(gamma[i], scale);
    unpackFloats<T>(residual[i], sum);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum[k] = toFloat(fromFloat<T>(fmaf(value[i][k] * factor, scale[k], sum[k])));
    const bool live = row < p.T && inside(i);
    if (live) storeFloats(static_cast<T*>(p.y) + row * p.N + column(i), sum);
    if (!moments) continue;
    const float2 of_group = momentsOf(sum);
    if (live && lane % kGroupLanes == 0) moments[int64_t{column(i) / kMomentFeatures} * p.T + row] = of_group;
  }
}

template <typename T, int kLanes, int kVectors>
cudaError_t launchRows(const PostNormParams& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceilDiv(p.T, kRowNormThreads / kLanes));
  return launchDependent(postNormKernel<T, kLanes, kVectors>, blocks, kRowNormThreads, 0, stream, p);
}

}  // namespace

cudaError_t launchPostNorm(const PostNormParams& params, cudaStream_t stream) {
  if (params.T <= 0) return cudaSuccess;
  if (params.N <= 0 || params.N % kMomentFeatures != 0 || params.N > kMaxWidth) return cudaErrorInvalidValue;
  if (!isAligned16(params.x) || !isAligned16(params.residual) || !isAligned16(params.gamma) || !isAligned16(params.y)) {
    return cudaErrorMisalignedAddress;
  }
  return dispatchHalf(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (params.N <= widthOf<T>(kWarpSize, 3)) return launchRows<T, kWarpSize, 3>(params, stream);
    if (params.N <= widthOf<T>(kWarpSize, 4)) return launchRows<T, kWarpSize, 4>(params, stream);
    if (params.N <= widthOf<T>(kRowNormThreads, 2)) return launchRows<T, kRowNormThreads, 2>(params, stream);
    return launchRows<T, kRowNormThreads, 4>(params, stream);
  });
}

}  // namespace padfree
