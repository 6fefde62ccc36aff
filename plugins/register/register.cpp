// SPDX-License-Identifier: Apache-2.0
// libpadfree_register.so: for loaders that only dlopen a plugin library and never call getCreators. Loading it
// registers the creators of the libpadfree.so beside it in every TensorRT of the process.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "common/beside.h"
#include "register/python.h"
#include "shell/tensorrt_abi.h"

namespace padfree {
namespace {

using nvinfer1::IPluginCreatorInterface;
using nvinfer1::IPluginCreatorV3One;
using GetCreators = IPluginCreatorInterface* const*(int32_t&);

constexpr const char* kV3Kind = "PLUGIN CREATOR_V3ONE";

// The same name, version and namespace: a second one would be refused, with an error in TensorRT's log.
bool isSame(const IPluginCreatorInterface& creator, const IPluginCreatorV3One& ours) {
  if (std::strcmp(creator.getInterfaceInfo().kind, kV3Kind) != 0) return false;
  const auto& other = static_cast<const IPluginCreatorV3One&>(creator);
  return std::strcmp(other.getPluginName(), ours.getPluginName()) == 0 &&
         std::strcmp(other.getPluginVersion(), ours.getPluginVersion()) == 0 &&
         std::strcmp(other.getPluginNamespace(), ours.getPluginNamespace()) == 0;
}

template <class Registry>
void registerMissing(Registry& registry, IPluginCreatorInterface* const* creators, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    const auto& ours = static_cast<const IPluginCreatorV3One&>(*creators[i]);
    int32_t known_count = 0;
    IPluginCreatorInterface* const* creators_present = registry.getAllCreators(&known_count);
    bool is_known = false;
    for (int32_t k = 0; creators_present != nullptr && k < known_count; ++k)
      is_known = is_known || isSame(*creators_present[k], ours);
    if (!is_known && !registry.registerCreator(*creators[i], "")) {
      std::fprintf(stderr, "padfree: TensorRT refused the plugin creator %s; see TensorRT's log\n",
                   ours.getPluginName());
    }
  }
}

// dlopen handle of the libpadfree.so in this library's own folder; null, with a message, where it cannot be loaded.
// It stays loaded: TensorRT keeps pointers into it.
void* loadPlugins() {
  const std::string path = besideLibraryOf(&loadPlugins, "libpadfree.so");
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    std::fprintf(stderr, "padfree: cannot load %s: %s; keep libpadfree.so beside libpadfree_register.so\n",
                 path.c_str(), dlerror());
  }
  return handle;
}

void registerAll() {
  auto tensorrts = loadedTensorRts();
  // Polygraphy loads plugins before it imports TensorRT, whose libraries only the Python package knows to find.
  if (tensorrts.empty() && importPythonModule("tensorrt")) tensorrts = loadedTensorRts();
  if (tensorrts.empty()) {
    std::fprintf(stderr,
                 "padfree: no TensorRT of version 10 or later is loaded in this process; load TensorRT before "
                 "libpadfree_register.so\n");
    return;
  }
  void* plugins = loadPlugins();
  if (plugins == nullptr) return;
  auto* getCreators = reinterpret_cast<GetCreators*>(dlsym(plugins, "getCreators"));
  if (getCreators == nullptr) {
    std::fprintf(stderr, "padfree: libpadfree.so has no getCreators; install padfree again\n");
    return;
  }
  int32_t count = 0;
  IPluginCreatorInterface* const* creators = getCreators(count);
  for (const TensorRt& tensorrt : tensorrts) {
    auto* getRegistry = tensorrt.find<void*()>("getPluginRegistry");
    void* registry = getRegistry == nullptr ? nullptr : getRegistry();
    if (registry == nullptr) continue;
    if (tensorrt.major >= kFirstVersionedMajor) {
      registerMissing(*static_cast<nvinfer1::IPluginRegistry*>(registry), creators, count);
    } else {
      registerMissing(*static_cast<tensorrt10::PluginRegistry*>(registry), creators, count);
    }
  }
}

const bool kRegistration = [] {
  try {
    registerAll();
    return true;
  } catch (...) {
    std::fprintf(stderr, "padfree: the plugin creators could not be registered: out of memory\n");
    return false;
  }
}();

}  // namespace
}  // namespace padfree
