// SPDX-License-Identifier: Apache-2.0
// Wrappers of the sm_90a instructions that blocks of one cluster use together, and of two-dimensional bulk copies (PTX
// ISA: cp.async.bulk.tensor, mapa, barrier.cluster, stmatrix).
#pragma once

#include "common/hopper.cuh"

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

// Arrives at the same barrier of a block of the cluster. It says that this thread has read what it had to: relaxed, as
// of what it wrote nothing is promised to the other block (a release to the cluster waits for all earlier writes, as
// long as half a stage takes).
__device__ inline void barrierArriveAt(uint64_t* barrier, unsigned rank) {
  perturb();
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(sharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

// The address in the cluster of what another block holds at this address of its own shared memory.
__device__ inline unsigned addressAt(unsigned shared_address, unsigned rank) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
  return address;
}
__device__ inline void storeShared(unsigned address, const float (&value)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
}
__device__ inline void addShared(float (&sum)[4], unsigned cluster_address) {
  float value[4];
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "r"(cluster_address)
               : "memory");
  for (int i = 0; i < 4; ++i) sum[i] += value[i];
}

// Copies the box at (column, row) to shared memory; completes at the barrier.
__device__ inline void copyBox(unsigned target, const CUtensorMap& map, int column, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(target),
      "l"(&map), "r"(column), "r"(row), "r"(sharedAddress(barrier))
      : "memory");
}

// The same to the blocks of the cluster whose bits are set, at the same place in each and completing at its barrier.
__device__ inline void copyBox(unsigned target, const CUtensorMap& map, int column, int row, uint64_t* barrier,
                               uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(target),
      "l"(&map), "r"(column), "r"(row), "r"(sharedAddress(barrier)), "h"(blocks)
      : "memory");
}

// Copies shared memory to the box at (column, row), clipped to the tensor; belongs to the next group committed.
__device__ inline void storeBox(const CUtensorMap& map, unsigned source, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
               "r"(column), "r"(row), "r"(source)
               : "memory");
}
__device__ inline void commitStores() {
  perturb();
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but the newest kPending groups have read their shared memory.
template <int kPending>
__device__ inline void waitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Stores four 8x8 matrices of 2-byte elements transposed; lane 8*i + r gives the address of row r of matrix i.
__device__ inline void storeMatricesTransposed(const unsigned (&fragment)[4], void* row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(sharedAddress(row)),
               "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
}

}  // namespace padfree
