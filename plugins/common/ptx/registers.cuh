// SPDX-License-Identifier: Apache-2.0
// What stays in registers.
#pragma once

namespace padfree {

// Keeps a number in a register that the compiler would compute anew wherever it is needed.
__device__ inline unsigned keepInRegister(unsigned value) {
  asm volatile("mov.u32 %0, %0;" : "+r"(value));
  return value;
}

}  // namespace padfree
