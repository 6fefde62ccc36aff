// SPDX-License-Identifier: Apache-2.0
// What the blocks of one cluster use together (PTX ISA: barrier.cluster, mapa, shared::cluster; sm_90).
#pragma once

#include "common/perturb.cuh"
#include "common/ptx/memory.cuh"

namespace padfree {

__device__ inline unsigned clusterRank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of the cluster; orders no memory but barriers initialised before fenceBarrierInit().
__device__ inline void clusterSync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The same, after which each thread sees what the others wrote before.
__device__ inline void clusterSyncMemory() {
  perturb();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// An arrival tells a block of the cluster that this thread has read what it had to. It is relaxed, for it promises
// nothing about this thread's writes; a release to the cluster would wait for all of them, half as long as a stage
// takes. CUDA 12.4 lacks that form; without a scope, the release is one to the thread's own block.
#if __CUDACC_VER_MAJOR__ >= 13
#define PADFREE_RELAXED_ARRIVAL "mbarrier.arrive.relaxed.cluster.shared::cluster.b64"
#else
#define PADFREE_RELAXED_ARRIVAL "mbarrier.arrive.shared::cluster.b64"
#endif

// Arrives at the same barrier of a block of the cluster.
__device__ inline void barrierArriveAt(uint64_t* barrier, unsigned rank) {
  perturb();
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n" PADFREE_RELAXED_ARRIVAL
      " _, [remote];\n}\n" ::"r"(sharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

// The same at an address in the cluster.
__device__ inline void barrierArriveAt(unsigned cluster_address) {
  perturb();
  asm volatile(PADFREE_RELAXED_ARRIVAL " _, [%0];" ::"r"(cluster_address) : "memory");
}

// The address in the cluster of what another block holds at this address of its own shared memory.
__device__ inline unsigned addressAt(unsigned shared_address, unsigned rank) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
  return address;
}

// Stores floats at an address in the cluster.
__device__ inline void storeInCluster(unsigned cluster_address, const float (&value)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(cluster_address), "f"(value[0]), "f"(value[1]),
               "f"(value[2]), "f"(value[3])
               : "memory");
}

// Sends a float to an address in the cluster: its 4 bytes complete at the barrier there, in the same block
// (barrierExpect), and a thread that has waited there sees it. (An acquire from the whole cluster would also empty the
// multiprocessor's cache of global memory, which holds nothing of this.)
__device__ inline void sendFloat(unsigned cluster_address, float value, unsigned cluster_barrier) {
  perturb();
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(cluster_address),
               "f"(value), "r"(cluster_barrier)
               : "memory");
}

// Loads floats from an address in the cluster.
__device__ inline void loadShared(float (&value)[4], unsigned cluster_address) {
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "r"(cluster_address)
               : "memory");
}

}  // namespace padfree
