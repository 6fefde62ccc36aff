// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in the epilogue of a GEMM (RoFormer, arXiv 2104.09864, section 3.2.2).
#pragma once

#include "common/ptx/sine.cuh"

namespace padfree {

// Rotates (x, y) by an angle, up to 2^24 either way; farther out the result is finite. Sine and cosine are the
// special-function unit's, right to 1e-6: a tenth of what rounding the results to fp16 costs at the most.
__device__ inline void rotatePair(float& x, float& y, float angle) {
  constexpr float kTwoPi = 6.2831854820251465f, kTwoPiRest = -1.7484555314695172e-07f;
  constexpr float kPerTwoPi = 0.15915494309189535f;
  constexpr float kWhole = 12582912.f;  // 1.5 * 2^23: a sum with it is a whole number
  const float revolutions = fmaf(angle, kPerTwoPi, kWhole) - kWhole;
  const float rest = fmaf(revolutions, -kTwoPiRest, fmaf(revolutions, -kTwoPi, angle));
  const float cosine = cosineFast(rest), sine = sineFast(rest);
  const float before = x;
  x = fmaf(x, cosine, -y * sine);
  y = fmaf(y, cosine, before * sine);
}

}  // namespace padfree
