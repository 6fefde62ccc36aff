// SPDX-License-Identifier: Apache-2.0
// One block a sequence. Its threads form groups that each cover a stretch of E; the groups share the tokens and are
// combined in a fixed order, so that results repeat bit by bit.
#include "common/device.cuh"
#include "common/launch.h"
#include "pool/launch.h"

namespace padfree {
namespace {

constexpr int kThreads = 512;
constexpr int kMaxSharedBytes = 48 * 1024;

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) poolKernel(PoolParams p, int threads_per_row, int groups) {
  extern __shared__ float partial[];  // [groups, threads_per_row * kWidth]
  __shared__ float scratch[kThreads / kWarpSize];
  const int b = blockIdx.x;
  const int begin = sequenceStart(p.cu_seqlens, b, p.T);
  const int end = max(sequenceStart(p.cu_seqlens, b + 1, p.T), begin);
  const int first = p.mode == PoolMode::kLast ? max(end - 1, begin) : begin;
  const int last = p.mode == PoolMode::kFirst ? min(begin + 1, end) : end;
  const bool maximum = p.mode == PoolMode::kMax;
  const auto combine = [&](float a, float c) { return maximum ? fmaxf(a, c) : a + c; };
  const int group = threadIdx.x / threads_per_row, lane = threadIdx.x % threads_per_row;
  const int chunk = threads_per_row * kWidth;
  const float scale = p.mode == PoolMode::kMean && last > first ? 1.f / (last - first) : 1.f;
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y) + static_cast<int64_t>(b) * p.E;

  // A row wider than the block is pooled chunk by chunk; one chunk is the rule.
  float squares = 0.f;
  for (int base = 0; base < p.E; base += chunk) {
    const int column = base + lane * kWidth;
    if (group < groups) {
      float accumulator[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) accumulator[j] = maximum ? -INFINITY : 0.f;
      if (column < p.E) {
        for (int t = first + group; t < last; t += groups) {
          float value[kWidth];
          loadFloats(x + static_cast<int64_t>(t) * p.E + column, value);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) accumulator[j] = combine(accumulator[j], value[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) partial[group * chunk + lane * kWidth + j] = accumulator[j];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < chunk && base + i < p.E; i += kThreads) {
      float value = partial[i];
      for (int g = 1; g < groups; ++g) value = combine(value, partial[g * chunk + i]);
      value = last > first ? value * scale : 0.f;
      squares += value * value;
      y[base + i] = fromFloat<T>(value);
      partial[i] = value;
    }
    __syncthreads();
  }
  if (!p.normalize) return;
  const float inverse = 1.f / fmaxf(sqrtf(blockSum(squares, scratch)), 1e-12f);
  for (int e = threadIdx.x; e < p.E; e += kThreads) {
    const float value = p.E <= chunk ? partial[e] : toFloat(y[e]);
    y[e] = fromFloat<T>(value * inverse);
  }
}

template <typename T, int kWidth>
cudaError_t launch(const PoolParams& params, cudaStream_t stream) {
  const int wanted = ceilDiv(params.E, kWidth);
  const int threads_per_row = wanted < kThreads ? wanted : kThreads;
  const int groups = kThreads / threads_per_row;
  const int bytes = groups * threads_per_row * kWidth * static_cast<int>(sizeof(float));
  static_assert(kThreads * kWidth * sizeof(float) <= kMaxSharedBytes, "more shared memory needs an opt-in");
  poolKernel<T, kWidth><<<params.B, kThreads, bytes, stream>>>(params, threads_per_row, groups);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launchPool(const PoolParams& params, cudaStream_t stream) {
  if (params.B <= 0 || params.E <= 0) return cudaSuccess;
  return dispatchActivation(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kWidth = kVectorBytes / sizeof(T);
    return params.E % kWidth == 0 ? launch<T, kWidth>(params, stream) : launch<T, 1>(params, stream);
  });
}

}  // namespace padfree
