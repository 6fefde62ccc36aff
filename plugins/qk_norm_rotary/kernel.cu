// SPDX-License-Identifier: Apache-2.0
// RMS norms of the heads of Q and K, and the rotary embedding of what they give: one pass, bound by memory.
#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "common/row_sums.cuh"
#include "qk_norm_rotary/launch.h"
#include "rotary/rotation.cuh"

namespace padfree {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
constexpr int kItems = 3;  // heads that a thread has in flight, with two 16-byte vectors of each
constexpr int kLeastLanes = 4;

// What a warp works on: a row, and some of its heads. Of kLanes threads, each has the same columns of all these heads.
struct WarpItems {
  int64_t row;
  int first_head, group, lane;  // group: of kLanes threads; it takes every (kWarpSize / kLanes)th head from the first
};

template <int kLanes>
__device__ inline WarpItems warpItems(int parts) {
  constexpr int kGroups = kWarpSize / kLanes;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int64_t row = warp / parts;
  const int part = static_cast<int>(warp - row * parts), lane = threadIdx.x % kWarpSize;
  return {row, part * kItems * kGroups, lane / kLanes, lane % kLanes};
}

// Cosines and sines of the pairs of a thread: threads with the same columns share the work.
template <int kLanes, int kWidth>
__device__ inline void rotationsOf(const QkNormRotaryParams& p, const WarpItems& items, float (&cosine)[kWidth],
                                   float (&sine)[kWidth]) {
  constexpr int kGroups = kWarpSize / kLanes, kShares = kGroups < kWidth ? kGroups : kWidth;
  Rotation own[kWidth / kShares];
  const int position = p.positions[items.row], last = p.D / 2 - 1;
#pragma unroll
  for (int i = 0; i < kWidth / kShares; ++i) {
    const int pair = items.lane * kWidth + i * kShares + items.group % kShares;
    own[i] = rotationOf(position, p.frequencies[min(pair, last)]);
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const int source = k % kShares * kLanes + items.lane;
    cosine[k] = __shfl_sync(kFullMask, own[k / kShares].cosine, source);
    sine[k] = __shfl_sync(kFullMask, own[k / kShares].sine, source);
  }
}

template <typename T, int kLanes, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) qkNormRotaryVectorKernel(QkNormRotaryParams p, int parts) {
  constexpr int kWidth = kVectorBytes / sizeof(T), kGroups = kWarpSize / kLanes;
  const WarpItems items = warpItems<kLanes>(parts);
  const int pairs = p.D / 2, heads = p.H + p.kv_heads, pair = items.lane * kWidth;
  const int column = kInterleaved ? 2 * pair : pair, second = kInterleaved ? kWidth : pairs;
  const T* const x = static_cast<const T*>(p.qkv) + items.row * p.W + column;
  T* const y = static_cast<T*>(p.qk) + items.row * heads * p.D + column;
  waitForPriorGrids();
  releaseNextGrid();
  if (items.row >= p.T) return;

  uint4 raw[kItems][2];
  const auto headOf = [&](int i) { return items.first_head + i * kGroups + items.group; };
  const auto isThere = [&](int i) { return headOf(i) < heads && pair < pairs; };
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    raw[i][0] = raw[i][1] = uint4{};
    if (!isThere(i)) continue;
    const T* const head = x + headOf(i) * p.D;
    raw[i][0] = *reinterpret_cast<const uint4*>(head);
    raw[i][1] = *reinterpret_cast<const uint4*>(head + second);
  }
  float cosine[kWidth], sine[kWidth];
  rotationsOf<kLanes>(p, items, cosine, sine);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    float value[2][kWidth];
    const float square =
        squareSum<kLanes>(value, [&](int half, float (&numbers)[kWidth]) { unpackFloats<T>(raw[i][half], numbers); });
    if (!isThere(i)) continue;
    const float factor = 1.f / sqrtf(square / p.D + p.epsilon);
    const T* const gamma = static_cast<const T*>(headOf(i) < p.H ? p.q_gamma : p.k_gamma) + column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float scale[kWidth];
      loadFloats(gamma + half * second, scale);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) value[half][k] *= factor * scale[k];
    }
    rotatePairs<kInterleaved>(value, cosine, sine);
    storeFloats(y + headOf(i) * p.D, value[0]);
    storeFloats(y + headOf(i) * p.D + second, value[1]);
  }
}

// Any sizes: a warp for every head.
template <typename T>
__global__ void __launch_bounds__(kThreads) qkNormRotaryGenericKernel(QkNormRotaryParams p) {
  waitForPriorGrids();
  releaseNextGrid();
  const int heads = p.H + p.kv_heads, pairs = p.D / 2, lane = threadIdx.x % kWarpSize;
  const int64_t warps = int64_t{gridDim.x} * kWarps, count = int64_t{p.T} * heads;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize; i < count; i += warps) {
    const int64_t row = i / heads;
    const int head = static_cast<int>(i - row * heads);
    const T* const x = static_cast<const T*>(p.qkv) + row * p.W + head * p.D;
    T* const y = static_cast<T*>(p.qk) + i * p.D;
    const T* const gamma = static_cast<const T*>(head < p.H ? p.q_gamma : p.k_gamma);
    const float square = rowSumOf<kWarpSize>(lane, p.D, true, [&](int d) { return toFloat(x[d]) * toFloat(x[d]); });
    const float factor = 1.f / sqrtf(square / p.D + p.epsilon);
    for (int pair = lane; pair < pairs; pair += kWarpSize) {
      const int first = p.interleaved ? 2 * pair : pair, second = first + (p.interleaved ? 1 : pairs);
      float one = toFloat(x[first]) * (factor * toFloat(gamma[first]));
      float other = toFloat(x[second]) * (factor * toFloat(gamma[second]));
      const Rotation rotation = rotationOf(p.positions[row], p.frequencies[pair]);
      rotatePair(one, other, rotation.cosine, rotation.sine);
      y[first] = fromFloat<T>(one);
      y[second] = fromFloat<T>(other);
    }
  }
}

template <typename T, int kLanes>
cudaError_t launchVectors(const QkNormRotaryParams& p, cudaStream_t stream) {
  const int parts = ceilDiv(p.H + p.kv_heads, kItems * (kWarpSize / kLanes));
  const int64_t blocks = ceilDiv<int64_t>(int64_t{p.T} * parts, kWarps);
  if (blocks > kMaxGridX) return cudaErrorInvalidValue;
  const auto kernel =
      p.interleaved ? qkNormRotaryVectorKernel<T, kLanes, true> : qkNormRotaryVectorKernel<T, kLanes, false>;
  return launchDependent(kernel, static_cast<unsigned>(blocks), kThreads, 0, stream, p, parts);
}

template <typename T>
cudaError_t launch(const QkNormRotaryParams& p, cudaStream_t stream) {
  constexpr int kWidth = kVectorBytes / sizeof(T);
  const int lanes = ceilDiv(p.D / 2, kWidth);
  if (p.W % kWidth != 0 || p.D % (2 * kWidth) != 0 || lanes > kWarpSize) {
    const int64_t heads = int64_t{p.T} * (p.H + p.kv_heads);
    return launchDependent(qkNormRotaryGenericKernel<T>, gridSize(ceilDiv<int64_t>(heads, kWarps)), kThreads, 0, stream,
                           p);
  }
  if (lanes <= kLeastLanes) return launchVectors<T, kLeastLanes>(p, stream);
  if (lanes <= 8) return launchVectors<T, 8>(p, stream);
  if (lanes <= 16) return launchVectors<T, 16>(p, stream);
  return launchVectors<T, kWarpSize>(p, stream);
}

}  // namespace

cudaError_t launchQkNormRotary(const QkNormRotaryParams& params, cudaStream_t stream) {
  if (params.T <= 0) return cudaSuccess;
  const int64_t columns = (int64_t{params.H} + params.kv_heads) * params.D;
  if (params.H <= 0 || params.kv_heads <= 0 || params.D <= 0 || params.D % 2 != 0 || columns > params.W) {
    return cudaErrorInvalidValue;
  }
  return dispatchActivation(params.type,
                            [&](auto tag) { return launch<typename decltype(tag)::Type>(params, stream); });
}

}  // namespace padfree
