// SPDX-License-Identifier: Apache-2.0
// 2^x by the special-function unit (PTX ISA: ex2).
#pragma once

#include <cuda_fp16.h>

namespace padfree {

constexpr float kLog2E = 1.4426950408889634f;

// 2^x by the special-function unit; 2^-inf = 0.
__device__ inline float exp2Fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x of two numbers at once.
__device__ inline half2 exp2Fast(half2 x) {
  unsigned y;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(y) : "r"(reinterpret_cast<const unsigned&>(x)));
  return reinterpret_cast<const half2&>(y);
}

}  // namespace padfree
