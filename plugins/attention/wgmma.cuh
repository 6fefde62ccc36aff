// SPDX-License-Identifier: Apache-2.0
// Wrappers of the sm_90a instructions of the Hopper kernel (PTX ISA: wgmma, mbarrier, cp.async.bulk.tensor, proxy
// fences), and the shared memory layout that wgmma reads: panels of 64 columns, rows of 128 bytes whose 16-byte chunks
// are permuted by the row
// ("128-byte swizzle"), so that neither the copies nor the matrix unit meet bank conflicts.
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

// Matrix descriptor of a panel: start, distance of 8-row groups (1024 bytes), 128-byte swizzle. It serves operands
// whose reduction runs along the row (Q, K) and, with the transposing variant, across rows (V).
__device__ inline uint64_t panelDescriptor(unsigned shared_address) {
  constexpr uint64_t kSwizzle128 = 1ull << 62, kGroupDistance = uint64_t{1024 >> 4} << 32, kUnused = 1ull << 16;
  return kSwizzle128 | kGroupDistance | kUnused | ((shared_address & 0x3ffff) >> 4);
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
__device__ inline void barrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sharedAddress(barrier)) : "memory");
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

// Waits for `threads` threads at one of the 16 barriers of a block.
__device__ inline void namedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#define PADFREE_WGMMA_ACCUMULATORS(c)                                                                          \
  "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),     \
      "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), \
      "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), \
      "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), \
      "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])

#define PADFREE_WGMMA_C                                                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31}"

// c[64x64] (+)= a[64x16] b[64x16]^T, both in shared memory, rows along the reduction. 8 columns an entry of c, laid out
// as by mma.sync.
#define PADFREE_DEFINE_WGMMA(TYPE, NAME)                                                                             \
  template <>                                                                                                        \
  __device__ inline void wgmmaShared<TYPE>(float (&c)[8][4], uint64_t a, uint64_t b, bool accumulate) {              \
    asm volatile(                                                                                                    \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                                 \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " PADFREE_WGMMA_C                              \
        ", %32, %33, p, 1, 1, 0, 0;\n}\n"                                                                            \
        : PADFREE_WGMMA_ACCUMULATORS(c)                                                                              \
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                                        \
  }                                                                                                                  \
  template <>                                                                                                        \
  __device__ inline void wgmmaRegisters<TYPE>(float (&c)[8][4], const unsigned (&a)[4], uint64_t b) {                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " PADFREE_WGMMA_C                     \
                 ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"                                                        \
                 : PADFREE_WGMMA_ACCUMULATORS(c)                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                              \
  }                                                                                                                  \
  template <>                                                                                                        \
  __device__ inline void wgmmaQueries<TYPE>(float (&c)[8][4], const unsigned (&a)[4], uint64_t b, bool accumulate) { \
    asm volatile(                                                                                                    \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                                 \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " PADFREE_WGMMA_C                              \
        ", {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"                                                              \
        : PADFREE_WGMMA_ACCUMULATORS(c)                                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));                    \
  }

template <typename T>
__device__ void wgmmaShared(float (&c)[8][4], uint64_t a, uint64_t b, bool accumulate);

// c[64x64] += a[64x16] b[16x64]: a in registers, b in shared memory, rows across the reduction.
template <typename T>
__device__ void wgmmaRegisters(float (&c)[8][4], const unsigned (&a)[4], uint64_t b);

// c[64x64] (+)= a[64x16] b[64x16]^T: a in registers, b in shared memory, rows along the reduction.
template <typename T>
__device__ void wgmmaQueries(float (&c)[8][4], const unsigned (&a)[4], uint64_t b, bool accumulate);

PADFREE_DEFINE_WGMMA(half, "f16")
PADFREE_DEFINE_WGMMA(__nv_bfloat16, "bf16")

#undef PADFREE_DEFINE_WGMMA
#undef PADFREE_WGMMA_C
#undef PADFREE_WGMMA_ACCUMULATORS

}  // namespace padfree
