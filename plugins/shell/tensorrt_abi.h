// SPDX-License-Identifier: Apache-2.0
// Calls into a TensorRT that is already in the process, whichever major version it is.
//
// The library is compiled from the headers of TensorRT 11 and links to no TensorRT. Plugins, creators and expressions
// have the same virtual functions in 10.x and 11.x. ILogger, ILoggerFinder and IPluginRegistry have not: 11.0 put
// IVersionedInterface under the first two and dropped the V2 plugin functions from the third. Here stand the functions
// of 10.x; never destroy one of these objects, and never call one before its version is known.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <vector>

#include "NvInferRuntime.h"

namespace padfree {
namespace tensorrt10 {

class Logger {
 public:
  virtual void log(int32_t severity, const char* message) noexcept = 0;

 protected:
  ~Logger() = default;  // TensorRT's is virtual and stands after log
};

class LoggerFinder {
 public:
  virtual Logger* findLogger() = 0;

 protected:
  ~LoggerFinder() = default;  // virtual there, after findLogger
};

class PluginRegistry {
 public:
  virtual void registerCreatorV1() = 0;
  virtual void getPluginCreatorList() = 0;
  virtual void getPluginCreator() = 0;
  virtual void completeDestructor() = 0;
  virtual void deletingDestructor() = 0;
  virtual void setErrorRecorder() = 0;
  virtual void getErrorRecorder() = 0;
  virtual void deregisterCreatorV1() = 0;
  virtual void isParentSearchEnabled() = 0;
  virtual void setParentSearchEnabled() = 0;
  virtual void loadLibrary() = 0;
  virtual void deregisterLibrary() = 0;
  virtual bool registerCreator(nvinfer1::IPluginCreatorInterface& creator, const char* plugin_namespace) noexcept = 0;
  virtual nvinfer1::IPluginCreatorInterface* const* getAllCreators(int32_t* count) const noexcept = 0;

 protected:
  ~PluginRegistry() = default;
};

}  // namespace tensorrt10

constexpr int kFirstVersionedMajor = 11;  // from here on the headers' own ILogger, ILoggerFinder, IPluginRegistry
constexpr int kOldestMajor = 10;          // the first with IPluginV3

// A TensorRT library in this process. `handle` is for dlsym.
struct TensorRt {
  void* handle;
  int major;

  template <class Function>
  Function* find(const char* symbol) const {
    return reinterpret_cast<Function*>(dlsym(handle, symbol));
  }
};

// Appends the TensorRT of a dlopen handle, if there is one and it is new enough.
inline void appendTensorRt(void* handle, std::vector<TensorRt>& candidates) {
  auto* version = reinterpret_cast<int32_t (*)()>(dlsym(handle, "getInferLibVersion"));
  const int major = version == nullptr ? 0 : version() / 10000;  // before 10.0 the factor was 1000: gives 0
  if (major >= kOldestMajor) candidates.push_back({handle, major});
}

// Every TensorRT runtime in this process: the one that global symbol lookup sees first, then those that were
// loaded privately (Python does that). Loads nothing.
inline std::vector<TensorRt> loadedTensorRts() {
  std::vector<TensorRt> candidates;
  appendTensorRt(RTLD_DEFAULT, candidates);
  for (const char* name : {"libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer_lean.so.11", "libnvinfer_lean.so.10",
                           "libnvinfer_dispatch.so.11", "libnvinfer_dispatch.so.10"}) {
    // The reference that this adds keeps the TensorRT that we call into from being unloaded.
    if (void* handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) appendTensorRt(handle, candidates);
  }
  return candidates;
}

// The TensorRT whose code made `object`, told by where its table of virtual functions lies; else any in the process.
// major is 0 where none is found.
inline TensorRt tensorRtOf(const void* object) {
  std::vector<TensorRt> candidates;
  Dl_info info{};
  if (dladdr(*static_cast<void* const*>(object), &info) != 0 && info.dli_fname != nullptr) {
    if (void* handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) appendTensorRt(handle, candidates);
  }
  if (candidates.empty()) candidates = loadedTensorRts();
  return candidates.empty() ? TensorRt{nullptr, 0} : candidates.front();
}

}  // namespace padfree
