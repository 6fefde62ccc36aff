// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch (CUDA programming guide, section of that name): on Hopper and newer a grid may be set
// up, and begin, while the grid before it in the stream still runs. Under CUDA-graph capture the launch becomes a
// programmatic edge.
//
// Rules for every kernel that launchDependent launches, and for every block of it, even one with nothing to do:
//   1. Before waitForPriorGrids() it reads nothing that the kernel ahead may have written and writes nothing: TensorRT
//      reuses activation memory. It may compute addresses, set up shared memory and prefetch into the L2 cache, which
//      is coherent.
//   2. It calls waitForPriorGrids() before it ends. The wait covers only the grid right before this one. That grid has
//   waited too, and so all earlier ones are covered.
//   3. It calls releaseNextGrid() only after waitForPriorGrids(). So when a grid begins, all grids but the one right
//   before it have ended, and it may read what those wrote before it waits (early_lengths in attention/launch.h).
//   4. Nothing read after the wait goes through the read-only cache (__ldg, const __restrict__): the wait does not make
//   that cache coherent.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/launch.h"
#include "common/ptx/griddepcontrol.cuh"
#include "common/ptx/memory.cuh"

namespace padfree {

// Brings `bytes` bytes into the L2 cache; `threads` threads share the lines. Does nothing for null. Unlike a load, it
// may come before waitForPriorGrids(), whoever writes the bytes.
__device__ inline void prefetchToL2(const void* data, int64_t bytes, unsigned thread = threadIdx.x,
                                    unsigned threads = blockDim.x) {
  constexpr int64_t kLineBytes = 128;
  if (!data) return;
#pragma unroll 1  // rarely more than one round
  for (int64_t i = thread * kLineBytes; i < bytes; i += threads * kLineBytes) {
    prefetchLineToL2(static_cast<const char*>(data) + i);
  }
}

// Whether launches may overlap: the current device is Hopper or newer and PADFREE_DEPENDENT_LAUNCH, read at the first
// launch, is not 0. The library holds no PTX: code that runs on such a device was compiled for it, and waits.
inline bool overlapsLaunches() {
  static const bool allowed = [] {
    const char* value = std::getenv("PADFREE_DEPENDENT_LAUNCH");
    return !value || std::strcmp(value, "0") != 0;
  }();
  int major = 0;
  return allowed && majorCapability(major) == cudaSuccess && major >= 9;
}

// Launches a kernel that keeps to the rules above, overlapped with the kernel before it where the device can, in
// clusters of `cluster` blocks; 1: no clusters.
template <typename... Parameters, typename... Arguments>
cudaError_t launchDependentClusters(void (*kernel)(Parameters...), dim3 grid, dim3 block, unsigned cluster,
                                    size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (overlapsLaunches()) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster, 1, 1};
  }
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

// Leaves the kernel's blocks as much shared memory of a multiprocessor as sharedBytesInstead() says.
inline cudaError_t limitSharedMemory([[maybe_unused]] const void* kernel) {
#ifdef PADFREE_PTX
  int bytes = 0;
  const cudaError_t status = deviceAttribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, bytes);
  const int limit = sharedBytesInstead(bytes);
  if (status != cudaSuccess || limit == bytes) return status;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, limit * 100 / bytes);
#else
  return cudaSuccess;
#endif
}

// The same as launchDependentClusters, without clusters.
template <typename... Parameters, typename... Arguments>
cudaError_t launchDependent(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                            cudaStream_t stream, Arguments&&... arguments) {
  return launchDependentClusters(kernel, grid, block, 1, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

// The same for kernels that may need more shared memory than the 48 KB that a block has without asking.
template <typename... Parameters, typename... Arguments>
cudaError_t launchWithSharedMemory(void (*kernel)(Parameters...), dim3 grid, dim3 block, int shared_bytes,
                                   cudaStream_t stream, Arguments&&... arguments) {
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status == cudaSuccess) status = limitSharedMemory(reinterpret_cast<const void*>(kernel));
  if (status != cudaSuccess) return status;
  return launchDependent(kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace padfree
