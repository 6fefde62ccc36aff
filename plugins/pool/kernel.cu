// SPDX-License-Identifier: Apache-2.0
// A block pools 64 bytes of the row of one sequence, so that a few long sequences still fill the chip. Its threads
// share the tokens and are combined in a fixed order: results repeat bit by bit, whatever else is in the batch.
#include "common/dependent_launch.cuh"
#include "common/launch.h"
#include "common/row_sums.cuh"
#include "pool/token_range.cuh"

namespace padfree {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kChunkBytes = 64;
constexpr int kTokensAhead = 8;  // tokens that a thread has in flight

// Block b * chunks + c pools chunk c of sequence b: kWidth elements per thread.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) poolKernel(PoolParams p, int chunks) {
  constexpr int kLanes = kChunkBytes / (kWidth * static_cast<int>(sizeof(T)));
  constexpr int kGroups = kThreads / kLanes;
  __shared__ float partial[kWarps][kLanes * kWidth];
  waitForPriorGrids();
  releaseNextGrid();
  const int b = blockIdx.x / chunks, lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const int base = blockIdx.x % chunks * (kLanes * kWidth), column = base + lane * kWidth;
  const auto [first, last] = tokenRangeOf(p, b);
  const bool maximum = p.mode == PoolMode::kMax;
  const auto combine = [&](float a, float c) { return maximum ? fmaxf(a, c) : a + c; };
  const T* x = static_cast<const T*>(p.x) + column;

  float accumulator[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) accumulator[j] = maximum ? -INFINITY : 0.f;
  for (int t = column < p.E ? first + group : last; t < last; t += kTokensAhead * kGroups) {
    Packed<T, kWidth> raw[kTokensAhead];
#pragma unroll
    for (int i = 0; i < kTokensAhead; ++i) {
      const int64_t token = min(t + i * kGroups, last - 1);
      raw[i] = *reinterpret_cast<const Packed<T, kWidth>*>(x + token * p.E);
    }
#pragma unroll
    for (int i = 0; i < kTokensAhead; ++i) {
      if (t + i * kGroups >= last) break;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) accumulator[j] = combine(accumulator[j], toFloat(raw[i].v[j]));
    }
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
#pragma unroll
    for (int offset = kLanes; offset < kWarpSize; offset *= 2) {
      accumulator[j] = combine(accumulator[j], __shfl_xor_sync(kFullMask, accumulator[j], offset));
    }
    if (threadIdx.x % kWarpSize < kLanes) partial[threadIdx.x / kWarpSize][lane * kWidth + j] = accumulator[j];
  }
  __syncthreads();
  const int i = threadIdx.x;
  if (i >= kLanes * kWidth || base + i >= p.E) return;
  float value = partial[0][i];
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, partial[warp][i]);
  if (last <= first) value = 0.f;
  if (p.mode == PoolMode::kMean && last > first) value /= last - first;
  storeResult<T>(p, static_cast<int64_t>(b) * p.E + base + i, value);
}

// One block per row of y, which it divides by its norm.
template <typename T>
__global__ void __launch_bounds__(kThreads) normalizeKernel(PoolParams p) {
  waitForPriorGrids();
  releaseNextGrid();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * p.E;
  const auto element = [&](int e) {
    return p.y_fp32 ? p.y_fp32[row + e] : toFloat(static_cast<const T*>(p.y)[row + e]);
  };
  const float squares = rowSumOf<kThreads>(threadIdx.x, p.E, true, [&](int e) { return element(e) * element(e); });
  const float inverse = 1.f / fmaxf(sqrtf(squares), kMinNorm);
  for (int e = threadIdx.x; e < p.E; e += kThreads) storeResult<T>(p, row + e, element(e) * inverse);
}

template <typename T, int kWidth>
cudaError_t launch(const PoolParams& params, cudaStream_t stream) {
  const int chunks = ceilDiv(params.E, kChunkBytes / static_cast<int>(sizeof(T)));
  const int64_t blocks = static_cast<int64_t>(params.B) * chunks;
  if (blocks > kMaxGridX) return cudaErrorInvalidValue;
  const cudaError_t status =
      launchDependent(poolKernel<T, kWidth>, static_cast<unsigned>(blocks), kThreads, 0, stream, params, chunks);
  if (status != cudaSuccess || !params.normalize) return status;
  return launchDependent(normalizeKernel<T>, params.B, kThreads, 0, stream, params);
}

}  // namespace

cudaError_t launchPool(const PoolParams& params, cudaStream_t stream) {
  if (params.B <= 0 || params.E <= 0) return cudaSuccess;
  if (params.gamma) return launchNormedPool(params, stream);
  return dispatchActivation(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kWidth = kVectorBytes / sizeof(T);
    return params.E % kWidth == 0 ? launch<T, kWidth>(params, stream) : launch<T, 1>(params, stream);
  });
}

}  // namespace padfree
