// SPDX-License-Identifier: Apache-2.0
#include "engine/driver.h"

#include <dlfcn.h>

#include "common/text.h"

namespace padfree::engine {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Driver load() {
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    throwError("no CUDA driver (", dlerror(),
               "); start the server on a machine with an NVIDIA GPU, its container with --gpus=all");
  }
  Driver found;
#define PADFREE_FIND(member, symbol)                                               \
  found.member = reinterpret_cast<decltype(found.member)>(dlsym(handle, #symbol)); \
  if (found.member == nullptr) {                                                   \
    throwError(kLibrary, " has no " #symbol "; install a driver from 2022 on");    \
  }
  PADFREE_DRIVER_FUNCTIONS(PADFREE_FIND)
#undef PADFREE_FIND
  return found;
}

const char* nameOf(const Driver& cuda, CUresult result) {
  const char* name = nullptr;
  cuda.errorName(result, &name);
  return name == nullptr ? "unknown" : name;
}

}  // namespace

const Driver& driver() {
  static const Driver kDriver = load();  // after a failure, the next call tries again
  static const CUresult kReady = kDriver.init(0);
  if (kReady != CUDA_SUCCESS) {
    throwError("the CUDA driver does not work (", nameOf(kDriver, kReady), "); look at nvidia-smi on this machine");
  }
  return kDriver;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* advice = result == CUDA_ERROR_OUT_OF_MEMORY
                           ? "; free GPU memory, use fewer instances, or build with a smaller profile"
                           : "; look at the server's log and at dmesg for Xid messages";
  throwError("CUDA could not ", what, " (", nameOf(driver(), result), ")", advice);
}

}  // namespace padfree::engine
