// SPDX-License-Identifier: Apache-2.0
#include "shell/device_code.h"

#include "common/text.h"

#ifndef PADFREE_ARCHITECTURES
#define PADFREE_ARCHITECTURES ""
#endif

namespace padfree {
namespace {

// runtime/gpu/device_code.py finds this in the file, which it need not load then.
constexpr char kMark[] = "padfree architectures: ";
constexpr char kMarked[] = "padfree architectures: " PADFREE_ARCHITECTURES;

}  // namespace

const char* architectures() {
  return kMarked + sizeof(kMark) - 1;
}

bool lacksCode(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction;
}

std::string reasonOf(cudaError_t status) {
  if (!lacksCode(status)) return cudaGetErrorString(status);
  const bool has_code = *architectures() != '\0';
  return text(cudaGetErrorString(status), "; the library has ", has_code ? "code for " : "no device code",
              architectures(), ", which `padfree doctor` compares with the GPU");
}

const char* nextStepOf(cudaError_t status) {
  if (lacksCode(status)) return "";
  switch (status) {
    case cudaErrorMisalignedAddress:
      return "; let every tensor begin at a multiple of 16 bytes, as memory of cudaMalloc does";
    case cudaErrorInvalidValue:
      return "; a size is beyond what the kernel takes: use smaller batches";
    case cudaErrorCallRequiresNewerDriver:
      return "; the kernel calls cuTensorMapEncodeTiled, which the driver lacks: install a driver of CUDA 12.0 or "
             "later";
    case cudaErrorNotSupported:
      return "; the kernel has no such combination of types: use fp16 or bf16";
    default:
      return "; an earlier kernel may have failed: set CUDA_LAUNCH_BLOCKING=1 and run again to see which";
  }
}

}  // namespace padfree
