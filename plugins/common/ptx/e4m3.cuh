// SPDX-License-Identifier: Apache-2.0
// Numbers of one byte with 4 bits of exponent and 3 of mantissa, largest 448 (PTX ISA: cvt.e4m3x2; sm_89 and newer).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace padfree {

// Two numbers rounded to nearest even; what is larger becomes 448.
__device__ inline unsigned packE4m3(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

// The same of two numbers in fp16.
__device__ inline unsigned packE4m3(unsigned halves) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(pair) : "r"(halves));
  return pair;
}

}  // namespace padfree
