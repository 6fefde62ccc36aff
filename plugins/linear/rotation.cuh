// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in the epilogue of a GEMM (RoFormer, arXiv 2104.09864, section 3.2.2).
#pragma once

#include "common/ptx/sine.cuh"
#include "common/rotation.h"

namespace padfree {

// Of an angle up to 2^24 either way; farther out the result is finite. Sine and cosine are the special-function unit's,
// right to 1e-6: a tenth of what rounding the results to fp16 costs at the most.
__device__ inline Rotation rotationBy(float angle) {
  constexpr float kTwoPi = 6.2831854820251465f, kTwoPiRest = -1.7484555314695172e-07f;
  constexpr float kPerTwoPi = 0.15915494309189535f;
  constexpr float kWhole = 12582912.f;  // 1.5 * 2^23: a sum with it is a whole number
  const float revolutions = fmaf(angle, kPerTwoPi, kWhole) - kWhole;
  const float rest = fmaf(revolutions, -kTwoPiRest, fmaf(revolutions, -kTwoPi, angle));
  return {cosineFast(rest), sineFast(rest)};
}

__device__ inline void rotatePair(float& x, float& y, const Rotation& rotation) {
  const float before = x;
  x = fmaf(x, rotation.cosine, -y * rotation.sine);
  y = fmaf(y, rotation.cosine, before * rotation.sine);
}

// By an angle.
__device__ inline void rotatePair(float& x, float& y, float angle) {
  rotatePair(x, y, rotationBy(angle));
}

}  // namespace padfree
