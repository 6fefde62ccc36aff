// SPDX-License-Identifier: Apache-2.0
// Device helpers shared by the kernels: conversions, 16-byte access, warp reductions, searches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/integers.h"
#include "common/types.h"

namespace padfree {

constexpr int kWarpSize = 32;
constexpr unsigned kFullMask = 0xffffffffu;
constexpr int kVectorBytes = 16;

__device__ inline float toFloat(float x) {
  return x;
}
__device__ inline float toFloat(half x) {
  return __half2float(x);
}
__device__ inline float toFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <typename T>
__device__ T fromFloat(float x);
template <>
__device__ inline float fromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline half fromFloat<half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 fromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Two numbers rounded to T, in the halves of a register.
template <typename T>
__device__ unsigned packPair(float low, float high);

template <>
__device__ inline unsigned packPair<half>(float low, float high) {
  const half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

template <>
__device__ inline unsigned packPair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

template <typename T>
__device__ float2 unpackPair(unsigned pair);

template <>
__device__ inline float2 unpackPair<half>(unsigned pair) {
  return __half22float2(*reinterpret_cast<const half2*>(&pair));
}

template <>
__device__ inline float2 unpackPair<__nv_bfloat16>(unsigned pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

// N consecutive elements moved by one load or store of N * sizeof(T) bytes.
template <typename T, int N>
struct alignas(N * sizeof(T)) Packed {
  T v[N];
};

template <int N, typename T>
__device__ inline void loadFloats(const T* source, float (&out)[N]) {
  const auto packed = *reinterpret_cast<const Packed<T, N>*>(source);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = toFloat(packed.v[i]);
}

// The elements in 8 or 16 bytes as floats.
template <typename T, typename Bits>
__device__ inline void unpackFloats(const Bits& bits, float (&out)[sizeof(Bits) / sizeof(T)]) {
  constexpr int kWords = sizeof(Bits) / sizeof(unsigned);
  const auto& words = reinterpret_cast<const unsigned (&)[kWords]>(bits);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, half>) {
      const float2 pair = __half22float2(*reinterpret_cast<const half2*>(&words[i]));
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    } else {  // bf16 is the upper half of a float
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}

template <int N, typename T>
__device__ inline void storeFloats(T* destination, const float (&in)[N]) {
  Packed<T, N> packed;
#pragma unroll
  for (int i = 0; i < N; ++i) packed.v[i] = fromFloat<T>(in[i]);
  *reinterpret_cast<Packed<T, N>*>(destination) = packed;
}

template <int N, typename T>
__device__ inline void addFloats(const T* source, float (&out)[N]) {
  float addend[N];
  loadFloats<N>(source, addend);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] += addend[i];
}

// Sum over an aligned group of kLanes threads.
template <int kLanes = kWarpSize>
__device__ inline float warpSum(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullMask, x, offset);
  return x;
}

__device__ inline float warpMax(float x) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, offset));
  return x;
}

// Sum over the block, for every thread. `scratch` holds one value per warp; blockDim.x is a multiple of 32.
__device__ inline float blockSum(float x, float* scratch) {
  x = warpSum(x);
  __syncthreads();  // the last use of scratch is over
  if (threadIdx.x % kWarpSize == 0) scratch[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  float total = 0.f;
  for (unsigned warp = 0; warp < blockDim.x / kWarpSize; ++warp) total += scratch[warp];
  return total;
}

// The last i in [0, n) with key(i) <= value, or 0 if there is none; key must not decrease. Every lane of an aligned
// group of kLanes calls it with the same arguments: that many keys are compared at a time, so that 1024 take two rounds
// of a whole warp. Stays inside [0, n) for any keys.
template <int kLanes = kWarpSize, typename Value, typename Key>
__device__ inline int warpFindLast(int n, Value value, Key key) {
  const int lane = threadIdx.x % kLanes;
  const unsigned group = (kFullMask >> (kWarpSize - kLanes)) << (threadIdx.x % kWarpSize - lane);
  int first = 0, last = n;
  while (last - first > 1) {
    const int step = ceilDiv(last - first, kLanes);
    const int i = first + lane * step;
    const unsigned below = __ballot_sync(group, i < last && key(i) <= value);
    first += (below ? __popc(below) - 1 : 0) * step;
    last = min(first + step, last);
  }
  return first;
}

// cu_seqlens[i], clamped to [0, T] so that no access leaves its tensor whatever the caller passed.
__device__ inline int sequenceStart(const int* cu_seqlens, int i, int T) {
  return min(max(cu_seqlens[i], 0), T);
}

}  // namespace padfree
