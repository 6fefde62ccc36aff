// SPDX-License-Identifier: Apache-2.0
// A grid and those before and after it in the stream (PTX ISA: griddepcontrol; sm_90, nothing before it).
// common/dependent_launch.cuh has the rules.
#pragma once

#include "common/perturb.cuh"

namespace padfree {

// Blocks until all grids before this one have ended and their writes can be read.
__device__ inline void waitForPriorGrids() {
  perturb();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next grid begin once every block of this one has called it or ended. It orders no memory: the next grid's
// wait still lasts until this grid has ended.
__device__ inline void releaseNextGrid() {
  perturb();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace padfree
