// SPDX-License-Identifier: Apache-2.0
// What a launch needs to know of a kernel, so that one function launches all of them: the host's code in the files
// that kernels are compiled in took a twentieth of their time.
#pragma once

#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

struct SelectedKernel {
  const void* function;  // takes Work and the operands' maps; null: there are no tiles of this size
  Out out;
  bool paired;  // whether a thread's two features are neighbours
  int boxes_at_once, ring_stages, shared_bytes;
};

// Fills all of `work` but what depends on the kernel.
cudaError_t makeWork(const LinearParams& params, const LinearTiling& tiling, Work& work);

// cudaErrorInvalidValue where there is no such kernel or a tensor is too large for a map,
// cudaErrorCallRequiresNewerDriver where the driver makes no maps.
cudaError_t launchSelected(const SelectedKernel& kernel, const LinearParams& params, const LinearTiling& tiling,
                           Work work, cudaStream_t stream);

}  // namespace padfree
