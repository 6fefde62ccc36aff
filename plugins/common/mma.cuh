// SPDX-License-Identifier: Apache-2.0
// Wrappers of the sm_80 instructions that the kernels share (PTX ISA: cp.async, ldmatrix, mma.sync).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace padfree {

__device__ inline unsigned sharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory without passing through registers; writes zeros and reads nothing unless `valid`.
__device__ inline void copyAsync16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sharedAddress(shared)), "l"(global),
               "r"(valid ? 16 : 0));
}

__device__ inline void commitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of the groups committed last are under way.
template <int kPending>
__device__ inline void waitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four 8x8 matrices of 2-byte elements; lane 8*i + r gives the address of row r of matrix i.
__device__ inline void loadMatrices(unsigned (&fragment)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(sharedAddress(row)));
}

__device__ inline void loadMatricesTransposed(unsigned (&fragment)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(sharedAddress(row)));
}

// c[16x8] += a[16x16] b[16x8], fp32 accumulation.
template <typename T>
__device__ void multiplyAdd(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ inline void multiplyAdd<half>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void multiplyAdd<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <typename T>
__device__ unsigned packPair(float low, float high);

template <>
__device__ inline unsigned packPair<half>(float low, float high) {
  const half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

template <>
__device__ inline unsigned packPair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

template <typename T>
__device__ float2 unpackPair(unsigned pair);

template <>
__device__ inline float2 unpackPair<half>(unsigned pair) {
  return __half22float2(*reinterpret_cast<const half2*>(&pair));
}

template <>
__device__ inline float2 unpackPair<__nv_bfloat16>(unsigned pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

constexpr float kLog2E = 1.4426950408889634f;

// 2^x by the special-function unit; 2^-inf = 0.
__device__ inline float exp2Fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace padfree
