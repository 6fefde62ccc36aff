// SPDX-License-Identifier: Apache-2.0
// CUDA's driver, opened at run time: the library does not link to CUDA, so one binary runs with all versions of the
// toolkit. The driver's functions and TensorRT's runtime API share a device's primary context.
#pragma once

#include <cuda.h>

namespace padfree::engine {

// Names of the members, and of the functions in libcuda.so.1: cuda.h maps plain names to these by macros.
#define PADFREE_DRIVER_FUNCTIONS(X)               \
  X(init, cuInit)                                 \
  X(errorName, cuGetErrorName)                    \
  X(deviceCount, cuDeviceGetCount)                \
  X(deviceName, cuDeviceGetName)                  \
  X(deviceAttribute, cuDeviceGetAttribute)        \
  X(retainContext, cuDevicePrimaryCtxRetain)      \
  X(releaseContext, cuDevicePrimaryCtxRelease_v2) \
  X(setContext, cuCtxSetCurrent)                  \
  X(allocate, cuMemAlloc_v2)                      \
  X(free, cuMemFree_v2)                           \
  X(allocateHost, cuMemHostAlloc)                 \
  X(freeHost, cuMemFreeHost)                      \
  X(copy, cuMemcpyAsync)                          \
  X(zero, cuMemsetD8Async)                        \
  X(createStream, cuStreamCreate)                 \
  X(destroyStream, cuStreamDestroy_v2)            \
  X(synchronize, cuStreamSynchronize)             \
  X(beginCapture, cuStreamBeginCapture_v2)        \
  X(endCapture, cuStreamEndCapture)               \
  X(instantiate, cuGraphInstantiateWithFlags)     \
  X(launch, cuGraphLaunch)                        \
  X(destroyGraph, cuGraphDestroy)                 \
  X(destroyGraphExec, cuGraphExecDestroy)

struct Driver {
#define PADFREE_DECLARE(member, symbol) decltype(&::symbol) member = nullptr;
  PADFREE_DRIVER_FUNCTIONS(PADFREE_DECLARE)
#undef PADFREE_DECLARE
};

// Opens and initialises the driver. Throws std::runtime_error if there is none, or if it does not work.
const Driver& driver();

// Throws std::runtime_error if the result is an error; `what` says what was tried.
void check(CUresult result, const char* what);

}  // namespace padfree::engine
