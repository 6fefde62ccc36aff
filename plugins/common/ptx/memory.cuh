// SPDX-License-Identifier: Apache-2.0
// Addresses and accesses of memory that C++ has no words for (PTX ISA: ld, st, prefetch).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/perturb.cuh"

namespace padfree {

__device__ inline unsigned sharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <typename T>
__device__ inline T* sharedPointer(unsigned address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

// A number in shared memory, stored with release and loaded with acquire: a thread of the block that sees it sees also
// what was done before it was stored.
__device__ inline void storeShared(int* target, int value) {
  asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(sharedAddress(target)), "r"(value) : "memory");
}
__device__ inline int loadShared(const int* target) {
  perturb();
  int value;
  asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(sharedAddress(target)) : "memory");
  return value;
}

// The same in memory that other blocks of the grid see.
__device__ inline void storeGlobal(unsigned long long* target, unsigned long long value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(target), "l"(value) : "memory");
}
__device__ inline unsigned long long loadGlobal(const unsigned long long* target) {
  perturb();
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(target) : "memory");
  return value;
}

__device__ inline void storeShared(unsigned address, const float (&value)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
}

// Stores 16 bytes by one instruction; the compiler splits some plain assignments into four of 4 bytes.
__device__ inline void store16Bytes(void* destination, const unsigned (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(destination), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// Brings the line with this address into the L2 cache.
__device__ inline void prefetchLineToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace padfree
