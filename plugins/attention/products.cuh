// SPDX-License-Identifier: Apache-2.0
// The matrix instructions (PTX ISA: wgmma) and the three-dimensional copy (cp.async.bulk.tensor) of the Hopper kernel.
#pragma once

#include "common/hopper.cuh"

namespace padfree {

// Copies the box of a tensor map at (column, head, token) to shared memory; completes at the barrier.
__device__ inline void copyBox(unsigned shared_address, const CUtensorMap& map, int column, int head, int token,
                               uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared_address),
      "l"(&map), "r"(column), "r"(head), "r"(token), "r"(sharedAddress(barrier))
      : "memory");
}

// The accumulators of products with 32, 64, 96 and 128 columns, as operands and in the instruction's text. An entry of
// c has 8 columns, laid out as by mma.sync.
#define PADFREE_ACCUMULATORS_32(c)                                                                             \
  "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),     \
      "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), \
      "+f"(c[3][2]), "+f"(c[3][3])
#define PADFREE_ACCUMULATORS_64(c)                                                                             \
  "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),     \
      "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), \
      "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), \
      "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), \
      "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
#define PADFREE_ACCUMULATORS_96(c)                                                                                 \
  PADFREE_ACCUMULATORS_64(c), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]),           \
      "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), \
      "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3])
#define PADFREE_ACCUMULATORS_128(c)                                                                                   \
  PADFREE_ACCUMULATORS_64(c), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]),              \
      "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]),    \
      "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), \
      "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), \
      "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
#define PADFREE_TEXT_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define PADFREE_TEXT_64                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define PADFREE_TEXT_96                                                                                  \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47}"
#define PADFREE_TEXT_128                                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "  \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "  \
  "%56, %57, %58, %59, %60, %61, %62, %63}"

// Descriptors reach the instruction through uniform registers; their high halves are all alike (see panelDescriptor).
#define PADFREE_TEXT_OF(number) #number
#define PADFREE_TEXT(number) PADFREE_TEXT_OF(number)
#define PADFREE_HIGH PADFREE_TEXT(PADFREE_DESCRIPTOR_HIGH)

// c[64xN] (+)= a[64x16] b[Nx16]^T, both in shared memory, rows along the reduction.
template <typename T>
__device__ void wgmmaShared(float (&c)[4][4], unsigned a, unsigned b, bool accumulate);
template <typename T>
__device__ void wgmmaShared(float (&c)[8][4], unsigned a, unsigned b, bool accumulate);
template <typename T>
__device__ void wgmmaShared(float (&c)[12][4], unsigned a, unsigned b, bool accumulate);
template <typename T>
__device__ void wgmmaShared(float (&c)[16][4], unsigned a, unsigned b, bool accumulate);

// c[64x64] (+)= a[64x16] b[16x64]: a in registers, b in shared memory, rows across the reduction.
template <typename T>
__device__ void wgmmaRegisters(float (&c)[8][4], const unsigned (&a)[4], unsigned b, bool accumulate);

#define PADFREE_DEFINE_SHARED(TYPE, NAME, COLUMNS, ENTRIES, A, B, ACCUMULATE)                                     \
  template <>                                                                                                     \
  __device__ inline void wgmmaShared<TYPE>(float (&c)[ENTRIES][4], unsigned a, unsigned b, bool accumulate) {     \
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " ACCUMULATE                                  \
                 ", 0;\n"                                                                                         \
                 "mov.b64 a, {" A ", " PADFREE_HIGH "};\nmov.b64 b, {" B ", " PADFREE_HIGH                        \
                 "};\n"                                                                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " " PADFREE_TEXT_##COLUMNS \
                 ", a, b, p, 1, 1, 0, 0;\n}\n"                                                                    \
                 : PADFREE_ACCUMULATORS_##COLUMNS(c)                                                              \
                 : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)));                                            \
  }

#define PADFREE_DEFINE_WGMMA(TYPE, NAME)                                                                               \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 32, 4, "%16", "%17", "%18")                                                        \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 64, 8, "%32", "%33", "%34")                                                        \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 96, 12, "%48", "%49", "%50")                                                       \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 128, 16, "%64", "%65", "%66")                                                      \
  template <>                                                                                                          \
  __device__ inline void wgmmaRegisters<TYPE>(float (&c)[8][4], const unsigned (&a)[4], unsigned b, bool accumulate) { \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %37, 0;\nmov.b64 b, {%36, " PADFREE_HIGH              \
                 "};\n"                                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " PADFREE_TEXT_64                       \
                 ", {%32, %33, %34, %35}, b, p, 1, 1, 1;\n}\n"                                                         \
                 : PADFREE_ACCUMULATORS_64(c)                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(accumulate)));             \
  }

PADFREE_DEFINE_WGMMA(half, "f16")
PADFREE_DEFINE_WGMMA(__nv_bfloat16, "bf16")

#undef PADFREE_DEFINE_WGMMA
#undef PADFREE_DEFINE_SHARED
#undef PADFREE_HIGH
#undef PADFREE_TEXT
#undef PADFREE_TEXT_OF
#undef PADFREE_TEXT_128
#undef PADFREE_TEXT_96
#undef PADFREE_TEXT_64
#undef PADFREE_TEXT_32
#undef PADFREE_ACCUMULATORS_128
#undef PADFREE_ACCUMULATORS_96
#undef PADFREE_ACCUMULATORS_64
#undef PADFREE_ACCUMULATORS_32

}  // namespace padfree
