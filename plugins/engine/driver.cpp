// SPDX-License-Identifier: Apache-2.0
#include "engine/driver.h"

#include <dlfcn.h>

#include "engine/failure.h"

namespace padfree::engine {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Driver load() {
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    throw Failure("no CUDA driver (" + std::string(dlerror()) +
                  "); start the server on a machine with an NVIDIA GPU, its container with --gpus=all");
  }
  Driver found;
#define PADFREE_FIND(member, symbol)                                                             \
  found.member = reinterpret_cast<decltype(found.member)>(dlsym(handle, #symbol));               \
  if (found.member == nullptr) {                                                                 \
    throw Failure(std::string(kLibrary) + " has no " #symbol "; install a driver from 2022 on"); \
  }
  PADFREE_DRIVER_FUNCTIONS(PADFREE_FIND)
#undef PADFREE_FIND
  return found;
}

}  // namespace

const Driver& driver() {
  static const Driver kDriver = load();  // after a failure, the next call tries again
  static const CUresult kReady = kDriver.init(0);
  if (kReady != CUDA_SUCCESS) {
    const char* name = nullptr;
    kDriver.errorName(kReady, &name);
    throw Failure("the CUDA driver does not work (" + std::string(name == nullptr ? "unknown" : name) +
                  "); look at nvidia-smi on this machine");
  }
  return kDriver;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver().errorName(result, &name);
  const std::string advice = result == CUDA_ERROR_OUT_OF_MEMORY
                                 ? "; free GPU memory, use fewer instances, or build with a smaller profile"
                                 : "; look at the server's log and at dmesg for Xid messages";
  throw Failure("CUDA could not " + std::string(what) + " (" + (name == nullptr ? "unknown" : name) + ")" + advice);
}

}  // namespace padfree::engine
