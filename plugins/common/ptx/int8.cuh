// SPDX-License-Identifier: Apache-2.0
// Four numbers in int8 (PTX ISA: cvt.pack; sm_72 and newer).
#pragma once

#include <cuda_runtime.h>

namespace padfree {

// Rounded to nearest even; what is beyond -128 and 127 becomes these, and NaN becomes 0. `a` is the lowest byte.
__device__ inline unsigned packInt8(float a, float b, float c, float d) {
  unsigned high, all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(__float2int_rn(d)), "r"(__float2int_rn(c)));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(all)
      : "r"(__float2int_rn(b)), "r"(__float2int_rn(a)), "r"(high));
  return all;
}

}  // namespace padfree
