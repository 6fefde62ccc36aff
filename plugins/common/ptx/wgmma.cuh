// SPDX-License-Identifier: Apache-2.0
// Matrix products of a warpgroup (PTX ISA: wgmma, setmaxnreg; sm_90a). Operands in shared memory are panels
// (common/panel.cuh). Accumulators as by mma.sync: 8 columns an entry of c.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/panel.cuh"
#include "common/perturb.cuh"

namespace padfree {

constexpr int kWarpgroup = 128;  // threads

// Low half of the matrix descriptor of a panel: where it starts, in units of 16 bytes. The high half is the same for
// all (PADFREE_DESCRIPTOR_HIGH): groups of 8 rows are 1024 bytes apart, 128-byte swizzle; for all narrow panels
// (PADFREE_NARROW_DESCRIPTOR_HIGH) 512 bytes and 64-byte swizzle. Such a descriptor serves operands whose reduction
// runs along the row (Q, K) and, with the transposing variant, across rows (V).
__device__ inline unsigned panelDescriptor(unsigned shared_address) {
  return 1u << 16 | shared_address >> 4;
}

#define PADFREE_DESCRIPTOR_HIGH 0x40000040
#define PADFREE_NARROW_DESCRIPTOR_HIGH 0x80000020

// The whole descriptor.
__device__ inline uint64_t fullDescriptor(unsigned low) {
  return static_cast<uint64_t>(PADFREE_DESCRIPTOR_HIGH) << 32 | low;
}

// Orders register and shared-memory accesses before the matrix instructions that follow.
__device__ inline void wgmmaFence() {
  perturb();
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A warpgroup takes registers that another gave up, or gives up its own.
template <int kRegisters>
__device__ inline void growRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void shrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Accumulators of so many groups of 16 columns, eight registers each: in the instruction's text and as operands.
#define PADFREE_OPERANDS_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PADFREE_OPERANDS_2 PADFREE_OPERANDS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PADFREE_OPERANDS_3 PADFREE_OPERANDS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define PADFREE_OPERANDS_4 PADFREE_OPERANDS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define PADFREE_OPERANDS_5 PADFREE_OPERANDS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define PADFREE_OPERANDS_6 PADFREE_OPERANDS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define PADFREE_OPERANDS_7 PADFREE_OPERANDS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define PADFREE_OPERANDS_8 PADFREE_OPERANDS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define PADFREE_OPERANDS_9 PADFREE_OPERANDS_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define PADFREE_OPERANDS_10 PADFREE_OPERANDS_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define PADFREE_OPERANDS_11 PADFREE_OPERANDS_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define PADFREE_OPERANDS_12 PADFREE_OPERANDS_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define PADFREE_OPERANDS_13 PADFREE_OPERANDS_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define PADFREE_OPERANDS_14 PADFREE_OPERANDS_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define PADFREE_OPERANDS_15 PADFREE_OPERANDS_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define PADFREE_OPERANDS_16 PADFREE_OPERANDS_15 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define PADFREE_SLOTS(c, i)                                                                                            \
  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]), "+f"(c[i + 1][0]), "+f"(c[i + 1][1]), "+f"(c[i + 1][2]), \
      "+f"(c[i + 1][3])
#define PADFREE_SLOTS_1(c) PADFREE_SLOTS(c, 0)
#define PADFREE_SLOTS_2(c) PADFREE_SLOTS_1(c), PADFREE_SLOTS(c, 2)
#define PADFREE_SLOTS_3(c) PADFREE_SLOTS_2(c), PADFREE_SLOTS(c, 4)
#define PADFREE_SLOTS_4(c) PADFREE_SLOTS_3(c), PADFREE_SLOTS(c, 6)
#define PADFREE_SLOTS_5(c) PADFREE_SLOTS_4(c), PADFREE_SLOTS(c, 8)
#define PADFREE_SLOTS_6(c) PADFREE_SLOTS_5(c), PADFREE_SLOTS(c, 10)
#define PADFREE_SLOTS_7(c) PADFREE_SLOTS_6(c), PADFREE_SLOTS(c, 12)
#define PADFREE_SLOTS_8(c) PADFREE_SLOTS_7(c), PADFREE_SLOTS(c, 14)
#define PADFREE_SLOTS_9(c) PADFREE_SLOTS_8(c), PADFREE_SLOTS(c, 16)
#define PADFREE_SLOTS_10(c) PADFREE_SLOTS_9(c), PADFREE_SLOTS(c, 18)
#define PADFREE_SLOTS_11(c) PADFREE_SLOTS_10(c), PADFREE_SLOTS(c, 20)
#define PADFREE_SLOTS_12(c) PADFREE_SLOTS_11(c), PADFREE_SLOTS(c, 22)
#define PADFREE_SLOTS_13(c) PADFREE_SLOTS_12(c), PADFREE_SLOTS(c, 24)
#define PADFREE_SLOTS_14(c) PADFREE_SLOTS_13(c), PADFREE_SLOTS(c, 26)
#define PADFREE_SLOTS_15(c) PADFREE_SLOTS_14(c), PADFREE_SLOTS(c, 28)
#define PADFREE_SLOTS_16(c) PADFREE_SLOTS_15(c), PADFREE_SLOTS(c, 30)

// Descriptors reach the instruction through uniform registers; their high halves are all alike (see panelDescriptor).
#define PADFREE_TEXT_OF(number) #number
#define PADFREE_TEXT(number) PADFREE_TEXT_OF(number)
#define PADFREE_HIGH PADFREE_TEXT(PADFREE_DESCRIPTOR_HIGH)
#define PADFREE_NARROW_HIGH PADFREE_TEXT(PADFREE_NARROW_DESCRIPTOR_HIGH)

// c[64xN] (+)= a[64x16] b[Nx16]^T, both in shared memory, rows of kRowBytes along the reduction.
template <typename T, int kRowBytes = kPanelRowBytes>
__device__ void wgmmaShared(float (&c)[4][4], unsigned a, unsigned b, bool accumulate);
template <typename T, int kRowBytes = kPanelRowBytes>
__device__ void wgmmaShared(float (&c)[8][4], unsigned a, unsigned b, bool accumulate);
template <typename T, int kRowBytes = kPanelRowBytes>
__device__ void wgmmaShared(float (&c)[12][4], unsigned a, unsigned b, bool accumulate);
template <typename T, int kRowBytes = kPanelRowBytes>
__device__ void wgmmaShared(float (&c)[16][4], unsigned a, unsigned b, bool accumulate);

// c[64xN] (+)= a[64x16] b[16xN]: a in registers, b in shared memory, rows across the reduction; N is 64 in a panel, 32
// in a narrow one.
template <typename T>
__device__ void wgmmaRegisters(float (&c)[8][4], const unsigned (&a)[4], unsigned b, bool accumulate);
template <typename T>
__device__ void wgmmaRegisters(float (&c)[4][4], const unsigned (&a)[4], unsigned b, bool accumulate);

// The same where b is [64x16]^T: its rows run along the reduction.
template <typename T>
__device__ void wgmmaRegistersAlong(float (&c)[8][4], const unsigned (&a)[4], unsigned b, bool accumulate);

// COLUMNS = 16 * GROUPS; A, B and ACCUMULATE: the operands after the 8 * GROUPS accumulators.
#define PADFREE_DEFINE_SHARED_AS(TYPE, NAME, ROW_BYTES, HIGH, COLUMNS, GROUPS, A, B, ACCUMULATE)                      \
  template <>                                                                                                         \
  __device__ inline void wgmmaShared<TYPE, ROW_BYTES>(float (&c)[COLUMNS / 8][4], unsigned a, unsigned b,             \
                                                      bool accumulate) {                                              \
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " ACCUMULATE                                      \
                 ", 0;\n"                                                                                             \
                 "mov.b64 a, {" A ", " HIGH "};\nmov.b64 b, {" B ", " HIGH                                            \
                 "};\n"                                                                                               \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" PADFREE_OPERANDS_##GROUPS \
                 "}, a, b, p, 1, 1, 0, 0;\n}\n"                                                                       \
                 : PADFREE_SLOTS_##GROUPS(c)                                                                          \
                 : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)));                                                \
  }

#define PADFREE_DEFINE_SHARED(TYPE, NAME, COLUMNS, GROUPS, A, B, ACCUMULATE)                            \
  PADFREE_DEFINE_SHARED_AS(TYPE, NAME, kPanelRowBytes, PADFREE_HIGH, COLUMNS, GROUPS, A, B, ACCUMULATE) \
  PADFREE_DEFINE_SHARED_AS(TYPE, NAME, kNarrowPanelRowBytes, PADFREE_NARROW_HIGH, COLUMNS, GROUPS, A, B, ACCUMULATE)

// ACROSS: whether rows of b run across the reduction.
#define PADFREE_DEFINE_REGISTERS(TYPE, NAME, FUNCTION, ACROSS)                                                   \
  template <>                                                                                                    \
  __device__ inline void FUNCTION<TYPE>(float (&c)[8][4], const unsigned (&a)[4], unsigned b, bool accumulate) { \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %37, 0;\nmov.b64 b, {%36, " PADFREE_HIGH        \
                 "};\n"                                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" PADFREE_OPERANDS_4             \
                 "}, {%32, %33, %34, %35}, b, p, 1, 1, " ACROSS ";\n}\n"                                         \
                 : PADFREE_SLOTS_4(c)                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(accumulate)));       \
  }

#define PADFREE_DEFINE_NARROW_REGISTERS(TYPE, NAME)                                                                    \
  template <>                                                                                                          \
  __device__ inline void wgmmaRegisters<TYPE>(float (&c)[4][4], const unsigned (&a)[4], unsigned b, bool accumulate) { \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %21, 0;\nmov.b64 b, {%20, " PADFREE_NARROW_HIGH       \
                 "};\n"                                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." NAME "." NAME " {" PADFREE_OPERANDS_2                   \
                 "}, {%16, %17, %18, %19}, b, p, 1, 1, 1;\n}\n"                                                        \
                 : PADFREE_SLOTS_2(c)                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(accumulate)));             \
  }

#define PADFREE_DEFINE_WGMMA(TYPE, NAME)                         \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 32, 2, "%16", "%17", "%18")  \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 64, 4, "%32", "%33", "%34")  \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 96, 6, "%48", "%49", "%50")  \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 128, 8, "%64", "%65", "%66") \
  PADFREE_DEFINE_REGISTERS(TYPE, NAME, wgmmaRegisters, "1")      \
  PADFREE_DEFINE_NARROW_REGISTERS(TYPE, NAME)                    \
  PADFREE_DEFINE_REGISTERS(TYPE, NAME, wgmmaRegistersAlong, "0")

PADFREE_DEFINE_WGMMA(half, "f16")
PADFREE_DEFINE_WGMMA(__nv_bfloat16, "bf16")

// c[64 x n] (+)= a[16 x 64]^T b[n x 16]^T for every width n of a tile, both in shared memory: `a` has rows across the
// reduction (features), `b` along it (tokens).
template <typename T, int kColumns>
__device__ void wgmmaTransposed(float (&c)[kColumns / 8][4], uint64_t a, uint64_t b, bool accumulate);

#define PADFREE_DEFINE_TRANSPOSED_AS(TYPE, NAME, COLUMNS, GROUPS, A, B, ACCUMULATE)                                   \
  template <>                                                                                                         \
  __device__ inline void wgmmaTransposed<TYPE, COLUMNS>(float (&c)[COLUMNS / 8][4], uint64_t a, uint64_t b,           \
                                                        bool accumulate) {                                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE                                                       \
                 ", 0;\n"                                                                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" PADFREE_OPERANDS_##GROUPS \
                 "}, " A ", " B ", p, 1, 1, 1, 0;\n}\n"                                                               \
                 : PADFREE_SLOTS_##GROUPS(c)                                                                          \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                                \
  }
#define PADFREE_DEFINE_TRANSPOSED(COLUMNS, GROUPS, A, B, ACCUMULATE)           \
  PADFREE_DEFINE_TRANSPOSED_AS(half, "f16", COLUMNS, GROUPS, A, B, ACCUMULATE) \
  PADFREE_DEFINE_TRANSPOSED_AS(__nv_bfloat16, "bf16", COLUMNS, GROUPS, A, B, ACCUMULATE)

// c[64 x n] (+)= a[64 x 32] b[n x 32]^T of e4m3, both in shared memory, rows along the reduction: the only way for
// numbers of one byte.
template <int kColumns>
__device__ void wgmmaE4m3(float (&c)[kColumns / 8][4], uint64_t a, uint64_t b, bool accumulate);

#define PADFREE_DEFINE_E4M3(COLUMNS, GROUPS, A, B, ACCUMULATE)                                                     \
  template <>                                                                                                      \
  __device__ inline void wgmmaE4m3<COLUMNS>(float (&c)[COLUMNS / 8][4], uint64_t a, uint64_t b, bool accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE                                                    \
                 ", 0;\n"                                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k32.f32.e4m3.e4m3 {" PADFREE_OPERANDS_##GROUPS      \
                 "}, " A ", " B ", p, 1, 1;\n}\n"                                                                  \
                 : PADFREE_SLOTS_##GROUPS(c)                                                                       \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                             \
  }

#define PADFREE_DEFINE_WIDTH(COLUMNS, GROUPS, A, B, ACCUMULATE) \
  PADFREE_DEFINE_TRANSPOSED(COLUMNS, GROUPS, A, B, ACCUMULATE)  \
  PADFREE_DEFINE_E4M3(COLUMNS, GROUPS, A, B, ACCUMULATE)

PADFREE_DEFINE_WIDTH(16, 1, "%8", "%9", "%10")
PADFREE_DEFINE_WIDTH(32, 2, "%16", "%17", "%18")
PADFREE_DEFINE_WIDTH(48, 3, "%24", "%25", "%26")
PADFREE_DEFINE_WIDTH(64, 4, "%32", "%33", "%34")
PADFREE_DEFINE_WIDTH(80, 5, "%40", "%41", "%42")
PADFREE_DEFINE_WIDTH(96, 6, "%48", "%49", "%50")
PADFREE_DEFINE_WIDTH(112, 7, "%56", "%57", "%58")
PADFREE_DEFINE_WIDTH(128, 8, "%64", "%65", "%66")
PADFREE_DEFINE_WIDTH(144, 9, "%72", "%73", "%74")
PADFREE_DEFINE_WIDTH(160, 10, "%80", "%81", "%82")
PADFREE_DEFINE_WIDTH(176, 11, "%88", "%89", "%90")
PADFREE_DEFINE_WIDTH(192, 12, "%96", "%97", "%98")
PADFREE_DEFINE_WIDTH(208, 13, "%104", "%105", "%106")
PADFREE_DEFINE_WIDTH(224, 14, "%112", "%113", "%114")
PADFREE_DEFINE_WIDTH(240, 15, "%120", "%121", "%122")
PADFREE_DEFINE_WIDTH(256, 16, "%128", "%129", "%130")

#undef PADFREE_DEFINE_WGMMA
#undef PADFREE_DEFINE_REGISTERS
#undef PADFREE_DEFINE_NARROW_REGISTERS
#undef PADFREE_DEFINE_SHARED
#undef PADFREE_DEFINE_SHARED_AS
#undef PADFREE_NARROW_HIGH
#undef PADFREE_HIGH
#undef PADFREE_TEXT
#undef PADFREE_TEXT_OF
#undef PADFREE_DEFINE_WIDTH
#undef PADFREE_DEFINE_E4M3
#undef PADFREE_DEFINE_TRANSPOSED
#undef PADFREE_DEFINE_TRANSPOSED_AS
#undef PADFREE_SLOTS_16
#undef PADFREE_SLOTS_15
#undef PADFREE_SLOTS_14
#undef PADFREE_SLOTS_13
#undef PADFREE_SLOTS_12
#undef PADFREE_SLOTS_11
#undef PADFREE_SLOTS_10
#undef PADFREE_SLOTS_9
#undef PADFREE_SLOTS_8
#undef PADFREE_SLOTS_7
#undef PADFREE_SLOTS_6
#undef PADFREE_SLOTS_5
#undef PADFREE_SLOTS_4
#undef PADFREE_SLOTS_3
#undef PADFREE_SLOTS_2
#undef PADFREE_SLOTS_1
#undef PADFREE_SLOTS
#undef PADFREE_OPERANDS_16
#undef PADFREE_OPERANDS_15
#undef PADFREE_OPERANDS_14
#undef PADFREE_OPERANDS_13
#undef PADFREE_OPERANDS_12
#undef PADFREE_OPERANDS_11
#undef PADFREE_OPERANDS_10
#undef PADFREE_OPERANDS_9
#undef PADFREE_OPERANDS_8
#undef PADFREE_OPERANDS_7
#undef PADFREE_OPERANDS_6
#undef PADFREE_OPERANDS_5
#undef PADFREE_OPERANDS_4
#undef PADFREE_OPERANDS_3
#undef PADFREE_OPERANDS_2
#undef PADFREE_OPERANDS_1

}  // namespace padfree
