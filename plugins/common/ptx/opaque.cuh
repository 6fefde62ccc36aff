// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace padfree {

// Hides from the compiler what a number is, so that it computes again what would take registers to keep.
__device__ inline void makeOpaque(float& x) {
  asm volatile("" : "+f"(x));
}
__device__ inline void makeOpaque(unsigned& x) {
  asm volatile("" : "+r"(x));
}

}  // namespace padfree
