// SPDX-License-Identifier: Apache-2.0
// Wrappers of the sm_90a instructions that the Hopper kernels share (PTX ISA: wgmma, mbarrier, named barriers, proxy
// fences, setmaxnreg), and the layout of shared memory that wgmma reads: panels of 64 columns, whose rows of 128 bytes
// have their 16-byte chunks permuted by the row ("128-byte swizzle"), so that neither copies nor the matrix unit meet
// bank conflicts.
#pragma once

#include <cuda.h>

#include "common/mma.cuh"
#include "common/perturb.cuh"

namespace padfree {

constexpr int kWarpgroup = 128;  // threads
constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;

// Byte offset of a 16-byte chunk in a panel that starts at a multiple of 1024 bytes.
__device__ inline int panelOffset(int row, int chunk) {
  return row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4);
}

// Low half of the matrix descriptor of a panel: where it starts, in units of 16 bytes. The high half is the same for
// all (PADFREE_DESCRIPTOR_HIGH): groups of 8 rows are 1024 bytes apart, 128-byte swizzle. Such a descriptor serves
// operands whose reduction runs along the row (Q, K) and, with the transposing variant, across rows (V).
__device__ inline unsigned panelDescriptor(unsigned shared_address) {
  return 1u << 16 | shared_address >> 4;
}

#define PADFREE_DESCRIPTOR_HIGH 0x40000040

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

// Makes this thread's writes to shared memory visible to the matrix unit.
__device__ inline void fenceSharedForWgmma() {
  perturb();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void barrierInit(uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(arrivals) : "memory");
}
// Makes barriers just initialised known to copies and to the other blocks of the cluster.
__device__ inline void fenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrierArrive(uint64_t* barrier, int times = 1) {
  perturb();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(times) : "memory");
}
__device__ inline void barrierWait(uint64_t* barrier, unsigned parity) {
  perturb();
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
  perturb();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(bytes)
               : "memory");
}

// A number in shared memory that other threads of the block read meanwhile: who sees it sees what was done before it
// was stored.
__device__ inline void storeShared(int* place, int value) {
  asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(sharedAddress(place)), "r"(value) : "memory");
}
__device__ inline int loadShared(const int* place) {
  perturb();
  int value;
  asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(sharedAddress(place)) : "memory");
  return value;
}

__device__ inline void prefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Waits at one of the 16 named barriers of a block until `threads` threads have come, those of namedArrive included.
__device__ inline void namedBarrier(int id, int threads) {
  perturb();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts these threads at a named barrier without waiting there.
__device__ inline void namedArrive(int id, int threads) {
  perturb();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A warpgroup takes registers that another gave up, and the other way round.
template <int kRegisters>
__device__ inline void growRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void shrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace padfree
