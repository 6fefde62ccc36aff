// SPDX-License-Identifier: Apache-2.0
#include "shell/device_code.h"

#include "shell/text.h"

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

}  // namespace padfree
