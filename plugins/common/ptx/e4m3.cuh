// SPDX-License-Identifier: Apache-2.0
// Pairs of numbers in e4m3 (PTX ISA: cvt.e4m3x2; sm_89 and newer).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/e4m3.h"

namespace padfree {

// Two numbers rounded to nearest even; what is larger becomes 448. Code for older architectures, which 8.9 may run,
// does without the instruction.
__device__ inline unsigned packE4m3(float low, float high) {
#if __CUDA_ARCH__ < 890
  return roundToE4m3(low) | roundToE4m3(high) << 8;
#else
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#endif
}

// The same of two numbers in fp16.
__device__ inline unsigned packE4m3(unsigned halves) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(pair) : "r"(halves));
  return pair;
}

}  // namespace padfree
