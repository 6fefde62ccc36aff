// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace padfree {

// Sine and cosine by the special-function unit (PTX ISA: sin.approx, cos.approx): exact to about 2^-21 for angles in
// [-pi, pi].
__device__ inline float cosineFast(float angle) {
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(angle));
  return y;
}
__device__ inline float sineFast(float angle) {
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(angle));
  return y;
}

}  // namespace padfree
