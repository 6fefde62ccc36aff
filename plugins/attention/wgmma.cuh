// SPDX-License-Identifier: Apache-2.0
// Wrappers of the sm_90a instructions of the Hopper kernel (PTX ISA: wgmma, mbarrier, cp.async.bulk.tensor, proxy
// fences), and the layout of shared memory that wgmma reads: panels of 64 columns, whose rows of 128 bytes have their
// 16-byte chunks permuted by the row ("128-byte swizzle"), so that neither copies nor the matrix unit meet bank
// conflicts.
#pragma once

#include <cuda.h>

#include "attention/mma.cuh"

namespace padfree {

constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;

// Byte offset of a 16-byte chunk in a panel that starts at a multiple of 1024 bytes.
__device__ inline int panelOffset(int row, int chunk) {
  return row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4);
}

// Low half of the matrix descriptor of a panel: where it starts, in units of 16 bytes. The high half is the same for
// all (kDescriptorHigh): groups of 8 rows are 1024 bytes apart, 128-byte swizzle. Such a descriptor serves
// operands whose reduction runs along the row (Q, K) and, with the transposing variant, across rows (V).
__device__ inline unsigned panelDescriptor(unsigned shared_address) {
  return 1u << 16 | shared_address >> 4;
}

constexpr unsigned kDescriptorHigh = 0x40000040;

// The whole descriptor.
__device__ inline uint64_t fullDescriptor(unsigned low) {
  return static_cast<uint64_t>(kDescriptorHigh) << 32 | low;
}

// Orders register and shared-memory accesses before the matrix instructions that follow.
__device__ inline void wgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Makes this thread's writes to shared memory visible to the matrix unit.
__device__ inline void fenceSharedForWgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void barrierInit(uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void barrierArrive(uint64_t* barrier, int times = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(times) : "memory");
}
__device__ inline void barrierWait(uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(sharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// Announces that copies of this many bytes will complete at the barrier, and counts as an arrival.
__device__ inline void barrierExpect(uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(bytes)
               : "memory");
}

__device__ inline void prefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies the box of a tensor map at (column, head, token) to shared memory; completes at the barrier.
__device__ inline void copyBox(unsigned shared_address, const CUtensorMap& map, int column, int head, int token,
                               uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared_address),
      "l"(&map), "r"(column), "r"(head), "r"(token), "r"(sharedAddress(barrier))
      : "memory");
}

// Waits at one of the 16 named barriers of a block until `threads` threads have come, those of namedArrive included.
__device__ inline void namedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts these threads at a named barrier without waiting there.
__device__ inline void namedArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The accumulators of a product with 64 and with 128 columns, as operands and in the instruction's text. An entry of c
// has 8 columns, laid out as by mma.sync.
#define PADFREE_ACCUMULATORS_64(c)                                                                             \
  "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),     \
      "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), \
      "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), \
      "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), \
      "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
#define PADFREE_ACCUMULATORS_128(c)                                                                                   \
  PADFREE_ACCUMULATORS_64(c), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]),              \
      "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]),    \
      "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), \
      "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), \
      "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
#define PADFREE_TEXT_64                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define PADFREE_TEXT_128                                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "  \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "  \
  "%56, %57, %58, %59, %60, %61, %62, %63}"

// Descriptors reach the instruction through uniform registers; their high halves are all alike (see panelDescriptor).
#define PADFREE_DESCRIPTOR_HIGH "0x40000040"

// c[64xN] (+)= a[64x16] b[Nx16]^T, both in shared memory, rows along the reduction.
template <typename T>
__device__ void wgmmaShared(float (&c)[8][4], unsigned a, unsigned b, bool accumulate);
template <typename T>
__device__ void wgmmaShared(float (&c)[16][4], unsigned a, unsigned b, bool accumulate);

// c[64x64] += a[64x16] b[16x64]: a in registers, b in shared memory, rows across the reduction.
template <typename T>
__device__ void wgmmaRegisters(float (&c)[8][4], const unsigned (&a)[4], unsigned b);

#define PADFREE_DEFINE_SHARED(TYPE, NAME, COLUMNS, ENTRIES, A, B, ACCUMULATE)                                     \
  template <>                                                                                                     \
  __device__ inline void wgmmaShared<TYPE>(float (&c)[ENTRIES][4], unsigned a, unsigned b, bool accumulate) {     \
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, " ACCUMULATE                                  \
                 ", 0;\n"                                                                                         \
                 "mov.b64 a, {" A ", " PADFREE_DESCRIPTOR_HIGH "};\nmov.b64 b, {" B ", " PADFREE_DESCRIPTOR_HIGH  \
                 "};\n"                                                                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " " PADFREE_TEXT_##COLUMNS \
                 ", a, b, p, 1, 1, 0, 0;\n}\n"                                                                    \
                 : PADFREE_ACCUMULATORS_##COLUMNS(c)                                                              \
                 : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)));                                            \
  }

#define PADFREE_DEFINE_WGMMA(TYPE, NAME)                                                              \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 64, 8, "%32", "%33", "%34")                                       \
  PADFREE_DEFINE_SHARED(TYPE, NAME, 128, 16, "%64", "%65", "%66")                                     \
  template <>                                                                                         \
  __device__ inline void wgmmaRegisters<TYPE>(float (&c)[8][4], const unsigned (&a)[4], unsigned b) { \
    asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%36, " PADFREE_DESCRIPTOR_HIGH                         \
                 "};\n"                                                                               \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " PADFREE_TEXT_64      \
                 ", {%32, %33, %34, %35}, b, 1, 1, 1, 1;\n}\n"                                        \
                 : PADFREE_ACCUMULATORS_64(c)                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));                               \
  }

PADFREE_DEFINE_WGMMA(half, "f16")
PADFREE_DEFINE_WGMMA(__nv_bfloat16, "bf16")

#undef PADFREE_DEFINE_WGMMA
#undef PADFREE_DEFINE_SHARED
#undef PADFREE_DESCRIPTOR_HIGH
#undef PADFREE_TEXT_128
#undef PADFREE_TEXT_64
#undef PADFREE_ACCUMULATORS_128
#undef PADFREE_ACCUMULATORS_64

}  // namespace padfree
