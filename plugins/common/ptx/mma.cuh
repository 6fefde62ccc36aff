// SPDX-License-Identifier: Apache-2.0
// Matrices of 2-byte elements that a warp holds in fragments, and their products (PTX ISA: ldmatrix, stmatrix,
// mma.sync; stmatrix from sm_90 on, products of e4m3 from sm_89 on, the others from sm_80 on).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/ptx/memory.cuh"

namespace padfree {

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

// Stores four 8x8 matrices of 2-byte elements transposed; lane 8*i + r gives the address of row r of matrix i.
__device__ inline void storeMatricesTransposed(const unsigned (&fragment)[4], void* row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(sharedAddress(row)),
               "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
}

// The same of two matrices, with the addresses of lanes 0 to 15.
__device__ inline void storeMatricesTransposed(const unsigned (&fragment)[2], void* row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(sharedAddress(row)),
               "r"(fragment[0]), "r"(fragment[1])
               : "memory");
}

// c += a b for fragments of 16 rows, 8 columns; kind: the depth and types in PTX's words; constraint: of c's numbers.
#define PADFREE_MULTIPLY_ADD(kind, constraint)                                                    \
  asm("mma.sync.aligned." kind " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+" constraint(c[0]), "+" constraint(c[1]), "+" constraint(c[2]), "+" constraint(c[3])    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// c[16x8] += a[16x16] b[16x8], fp32 accumulation.
template <typename T>
__device__ void multiplyAdd(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static_assert(std::is_same_v<T, half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (std::is_same_v<T, half>) {
    PADFREE_MULTIPLY_ADD("m16n8k16.row.col.f32.f16.f16.f32", "f");
  } else {
    PADFREE_MULTIPLY_ADD("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
  }
}

// c[16x8] += a[16x16] b[16x8] of fp16: the 16 products of a sum are added in fp16, and then to c in fp32.
__device__ inline void multiplyAddInFp16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  half2 low, high;
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %8};"
      : "=r"(reinterpret_cast<unsigned&>(low)), "=r"(reinterpret_cast<unsigned&>(high))
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
  c[0] += __low2float(low);
  c[1] += __high2float(low);
  c[2] += __low2float(high);
  c[3] += __high2float(high);
}

// c[16x8] += a[16x32] b[32x8] of e4m3, fp32 accumulation. The fragments hold the bytes that those of 2-byte elements
// do.
__device__ inline void multiplyAddE4m3(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  PADFREE_MULTIPLY_ADD("m16n8k32.row.col.f32.e4m3.e4m3.f32", "f");
}

// The same of int8, with sums in int32.
__device__ inline void multiplyAddInt8(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  PADFREE_MULTIPLY_ADD("m16n8k32.row.col.s32.s8.s8.s32", "r");
}

#undef PADFREE_MULTIPLY_ADD

}  // namespace padfree
