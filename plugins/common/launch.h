// SPDX-License-Identifier: Apache-2.0
// Host helpers shared by the launchers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>

#include "common/integers.h"
#include "common/types.h"

namespace padfree {

template <typename T>
struct TypeTag {
  using Type = T;
};

// Calls function(TypeTag<T>{}) with the C++ type of an activation type.
template <typename Function>
cudaError_t dispatchActivation(DataType type, Function function) {
  switch (type) {
    case DataType::kFloat32:
      return function(TypeTag<float>{});
    case DataType::kFloat16:
      return function(TypeTag<half>{});
    case DataType::kBFloat16:
      return function(TypeTag<__nv_bfloat16>{});
    case DataType::kInt32:
      break;
  }
  return cudaErrorInvalidValue;
}

constexpr bool isAligned(int64_t bytes, int64_t alignment) {
  return bytes % alignment == 0;
}

// For vector loads and bulk copies.
inline bool isAligned16(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// An attribute of the current device.
inline cudaError_t deviceAttribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  return status == cudaSuccess ? cudaDeviceGetAttribute(&value, attribute, device) : status;
}
inline cudaError_t countMultiprocessors(int& count) {
  return deviceAttribute(cudaDevAttrMultiProcessorCount, count);
}
// The first number of the current device's compute capability. A build with PADFREE_PTX, whose code was made for older
// GPUs, says that the device is one of those: it is to launch what it would launch there.
inline cudaError_t majorCapability(int& major) {
#ifdef PADFREE_PTX
  major = 8;
  return cudaSuccess;
#else
  return deviceAttribute(cudaDevAttrComputeCapabilityMajor, major);
#endif
}

// Lowers the shared memory of a multiprocessor, in bytes, to that of the GPU in whose place this one runs in a
// benchmark: a build with PADFREE_PTX takes PADFREE_SHARED_KB, read once, so that as many blocks run at a time as
// there.
inline int sharedBytesInstead(int bytes) {
#ifdef PADFREE_PTX
  static const int limit = [] {
    const char* const value = std::getenv("PADFREE_SHARED_KB");
    return value ? std::atoi(value) * 1024 : 0;
  }();
  if (limit > 0 && limit < bytes) return limit;
#endif
  return bytes;
}

// Blocks of a one-dimensional grid; a grid-stride loop covers what lies beyond the limit.
constexpr int64_t kMaxGridX = 0x7fffffff;

inline unsigned gridSize(int64_t blocks) {
  return static_cast<unsigned>(blocks < kMaxGridX ? blocks : kMaxGridX);
}

}  // namespace padfree
