// SPDX-License-Identifier: Apache-2.0
// Kernels that store or multiply e4m3, which sm_89 and newer have, in a library that is compiled for older GPUs as
// well.
#pragma once

#include "common/launch.h"
#include "common/ptx/e4m3.cuh"

namespace padfree {

// Whether the architecture that is compiled for has e4m3. Kernels are empty where it has not.
constexpr bool hasE4m3() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  return false;
#else
  return true;
#endif
}

// An error unless the code that a kernel runs by on the current device was compiled with e4m3. Where the library has
// none for 8.6 or 8.9, that for sm_80 runs there.
inline cudaError_t checkE4m3Code(const void* kernel) {
  constexpr int kMinVersion = 89;
  int major = 0;
  cudaError_t status = majorCapability(major);
  if (status != cudaSuccess || major > 8) return status;
  cudaFuncAttributes attributes{};
  status = cudaFuncGetAttributes(&attributes, kernel);
  if (status != cudaSuccess) return status;
  return attributes.binaryVersion < kMinVersion ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

// Calls function(TypeTag<T>{}) with the C++ type of the activations that results in e4m3 stand beside.
template <typename Function>
cudaError_t dispatchHalf(DataType type, Function function) {
  if (type == DataType::kFloat16) return function(TypeTag<half>{});
  return type == DataType::kBFloat16 ? function(TypeTag<__nv_bfloat16>{}) : cudaErrorNotSupported;
}

}  // namespace padfree
