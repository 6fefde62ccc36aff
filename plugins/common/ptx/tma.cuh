// SPDX-License-Identifier: Apache-2.0
// Copies of boxes of tensors between global and shared memory, by the maps of common/tensor_map.h (PTX ISA:
// cp.async.bulk.tensor; sm_90). One thread issues them.
#pragma once

#include <cuda.h>

#include "common/perturb.cuh"
#include "common/ptx/memory.cuh"

namespace padfree {

__device__ inline void prefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies the box at (column, row) to shared memory; completes at the barrier.
__device__ inline void copyBox(unsigned target, const CUtensorMap& map, int column, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(target),
      "l"(&map), "r"(column), "r"(row), "r"(sharedAddress(barrier))
      : "memory");
}

// The same to the blocks of the cluster whose bits are set, at the same offset in each and completing at its barrier.
__device__ inline void copyBox(unsigned target, const CUtensorMap& map, int column, int row, uint64_t* barrier,
                               uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(target),
      "l"(&map), "r"(column), "r"(row), "r"(sharedAddress(barrier)), "h"(blocks)
      : "memory");
}

// The same for a tensor of three dimensions.
__device__ inline void copyBox(unsigned target, const CUtensorMap& map, int column, int row, int plane,
                               uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(target),
      "l"(&map), "r"(column), "r"(row), "r"(plane), "r"(sharedAddress(barrier))
      : "memory");
}

// The same for a tensor of four dimensions at (column, 0, 0, block), to the blocks whose bits are set.
__device__ inline void copyRows(unsigned target, const CUtensorMap& map, int column, int block, uint64_t* barrier,
                                uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(target),
      "l"(&map), "r"(column), "r"(0), "r"(block), "r"(sharedAddress(barrier)), "h"(blocks)
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

}  // namespace padfree
