// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/engine_library.h"

#include <dlfcn.h>

#include "common/text.h"
#include "triton_backend/triton_abi.h"
#include "triton_batching/failure.h"

namespace padfree {

const PadfreeEngineApi& loadEngineLibrary(const std::string& path) {
  // Never closed: TensorRT and CUDA keep threads and pointers that outlive all engines.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    throw Failure(text("the engine library cannot be loaded (", dlerror(),
                       "); keep libpadfree_engine.so beside libtriton_padfree.so, or name it: "
                       "--backend-config=padfree,engine=PATH"),
                  TRITONSERVER_ERROR_UNAVAILABLE);
  }
  auto* function = reinterpret_cast<PadfreeEngineApiFunction*>(dlsym(handle, kPadfreeEngineApiName));
  const PadfreeEngineApi* api = function == nullptr ? nullptr : function();
  if (api == nullptr || api->abi != kPadfreeEngineAbi) {
    throw Failure(text(path, " has engine interface ", api == nullptr ? "none" : text(api->abi),
                       ", this backend needs ", kPadfreeEngineAbi, "; take both libraries from the same padfree"),
                  TRITONSERVER_ERROR_UNSUPPORTED);
  }
  return *api;
}

}  // namespace padfree
