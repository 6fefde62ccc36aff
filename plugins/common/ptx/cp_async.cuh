// SPDX-License-Identifier: Apache-2.0
// Copies of single threads to shared memory that pass through no registers (PTX ISA: cp.async, sm_80).
#pragma once

#include "common/ptx/memory.cuh"

namespace padfree {

__device__ inline void copyAsync16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(sharedAddress(shared)), "l"(global));
}

// The same, but writes zeros and reads nothing unless `valid`.
__device__ inline void copyAsync16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sharedAddress(shared)), "l"(global),
               "r"(valid ? 16 : 0));
}

// The same, but does nothing unless `wanted`, without a branch.
__device__ inline void copyAsync16(void* shared, const void* global, bool valid, bool wanted) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %3, 0; @wanted cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(
          sharedAddress(shared)),
      "l"(global), "r"(valid ? 16 : 0), "r"(static_cast<unsigned>(wanted)));
}

// Asks the L2 cache for the 128 bytes around an address.
__device__ inline void prefetchL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

__device__ inline void commitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of the groups committed last are in flight.
template <int kPending>
__device__ inline void waitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace padfree
