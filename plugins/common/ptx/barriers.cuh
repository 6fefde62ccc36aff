// SPDX-License-Identifier: Apache-2.0
// Barriers of a block's threads, and fences (PTX ISA: mbarrier, bar, fence; sm_90).
#pragma once

#include "common/perturb.cuh"
#include "common/ptx/memory.cuh"

namespace padfree {

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
__device__ inline void barrierWaitAt(unsigned shared_address, unsigned parity) {
  perturb();
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address),
      "r"(parity)
      : "memory");
}
__device__ inline void barrierWait(uint64_t* barrier, unsigned parity) {
  barrierWaitAt(sharedAddress(barrier), parity);
}

// Announces that copies of this many bytes will complete at the barrier, and counts as an arrival.
__device__ inline void barrierExpect(uint64_t* barrier, unsigned bytes) {
  perturb();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(bytes)
               : "memory");
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

// Makes writes to shared memory visible to wgmma and to bulk copies (the "async proxy"): those of this thread, and
// those of others that a barrier has brought before it. It has to stand between a write and the copy in the copy's
// block, whichever thread meets it (Lustig, Cooksey and Giroux, "Mixed-proxy extensions for the NVIDIA PTX memory
// consistency model", ISCA 2022). A thread waits here until all its memory operations are done.
__device__ inline void fenceAsyncProxy() {
  perturb();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace padfree
