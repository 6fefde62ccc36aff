// SPDX-License-Identifier: Apache-2.0
// e4m3: numbers of one byte with 4 bits of exponent and 3 of mantissa, the largest 448 (arXiv 2209.05433).
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace padfree {

// Bounds for the scales of e4m3 results: kernels multiply by their inverses, which fp16 can hold.
constexpr float kMinE4m3Scale = 1.f / 16384, kMaxE4m3Scale = 16384.f;

// The byte that cvt.rn.satfinite.e4m3x2.f32 makes of a number: rounded to nearest even, 448 for what is larger, 0x7f
// for NaN. Adding 2^20 times the number's power of two leaves its first four bits at the end of the sum, rounded.
__host__ __device__ inline unsigned roundToE4m3(float x) {
  constexpr float kLargest = 448.f;
  constexpr uint32_t kExponentBits = 0x7f800000, kMinExponent = 121u << 23, kToLastBits = 20u << 23;
  const float size = fminf(fabsf(x), kLargest);
  uint32_t bits, exponent, rounded;
  memcpy(&bits, &size, sizeof(bits));
  exponent = bits & kExponentBits;
  if (exponent < kMinExponent) exponent = kMinExponent;  // of 2^-6: what is smaller is subnormal
  const uint32_t base = exponent + kToLastBits;
  float sum;
  memcpy(&sum, &base, sizeof(sum));
  sum += size;
  memcpy(&rounded, &sum, sizeof(rounded));
  memcpy(&bits, &x, sizeof(bits));
  const unsigned code = (rounded - base) + ((exponent - kMinExponent) >> 20);
  return x != x ? 0x7fu : code | (bits >> 24 & 0x80u);
}

}  // namespace padfree
