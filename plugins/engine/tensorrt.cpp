// SPDX-License-Identifier: Apache-2.0
#include "engine/tensorrt.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "common/beside.h"
#include "common/text.h"

namespace padfree::engine {
namespace {

constexpr int kDeviceMemoryV2 = 100100;  // 10.1.0: the first with contexts that take the size of their memory
constexpr uintptr_t kFirstPage = 4096;
constexpr const char* kRegister = "libpadfree_register.so";

std::mutex error_mutex;
std::string newest_error;  // guarded by error_mutex

void note(int32_t severity, const char* message) noexcept {
  constexpr int32_t kError = 1;  // Severity::kERROR; 0 is an internal one
  if (severity > kError || message == nullptr) return;
  try {
    const std::lock_guard<std::mutex> lock(error_mutex);
    newest_error = message;
  } catch (...) {
    std::fputs(message, stderr);
  }
}

// The process's loggers for TensorRT, which may call them as long as any of its objects exists: never destroyed.
class Logger10 : public tensorrt10::Logger {
 public:
  void log(int32_t severity, const char* message) noexcept override { note(severity, message); }
  virtual void completeDestructor() noexcept {}  // TensorRT's table has its destructor here
  virtual void deletingDestructor() noexcept {}
};

class Logger11 : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override { note(static_cast<int32_t>(severity), message); }
};

void* loggerFor(int major) {
  static auto* const ten = new Logger10;
  static auto* const eleven = new Logger11;
  return major >= kFirstVersionedMajor ? static_cast<void*>(static_cast<nvinfer1::ILogger*>(eleven))
                                       : static_cast<void*>(static_cast<tensorrt10::Logger*>(ten));
}

std::string toText(int version) {
  return text(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

int versionOf(const TensorRt& tensorrt) {
  auto* version = tensorrt.find<int32_t()>("getInferLibVersion");
  return version == nullptr ? 0 : version();
}

// The first three numbers: 10.15.1.29 -> 10.15.1.
std::string shortVersion(const std::string& version) {
  size_t end = 0;
  for (int dots = 0; end < version.size(); ++end) {
    if (version[end] == '.' && ++dots == 3) break;
  }
  return version.substr(0, end);
}

nvinfer1::Dims toDims(const Dims& shape) {
  nvinfer1::Dims dims{};
  dims.nbDims = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.d);
  return dims;
}

}  // namespace

TensorRtLibrary::TensorRtLibrary(const std::string& wanted) {
  const std::string name = "libnvinfer.so." + wanted.substr(0, wanted.find('.'));
  // In addition to those in the process: the server's TensorRT backend may not have been loaded.
  const bool is_there = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr;
  const std::string reason = is_there ? "" : dlerror();
  std::string found;
  for (const TensorRt& candidate : loadedTensorRts()) {
    const std::string version = toText(versionOf(candidate));
    if (version == shortVersion(wanted) && candidate.find<void*(void*, int32_t)>("createInferRuntime_INTERNAL")) {
      tensorrt_ = candidate;
      number_ = versionOf(candidate);
      version_ = version;
      return;
    }
    found += (found.empty() ? "" : ", ") + version;
  }
  throwError("the plan was built by TensorRT " + wanted + ", and the server has " +
             (found.empty() ? "none (" + reason + ")" : found) +
             "; plans run only in the version that built them: use the server release that has it, or build the "
             "plan again with padfree build");
}

void loadPlugins() {
  const std::string path = besideLibraryOf(&loadPlugins, kRegister);
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == nullptr) {
    throwError("the plan's plugins cannot be loaded (", dlerror(), "); keep ", kRegister,
               " and libpadfree.so beside libpadfree_engine.so");
  }
}

TensorRtEngine::TensorRtEngine(const TensorRtLibrary& library, const std::string& plan, const std::string& name)
    : version_(library.versionNumber()) {
  auto* create = library.handle().find<void*(void*, int32_t)>("createInferRuntime_INTERNAL");
  note(0, "TensorRT gave no reason");
  // The function asks for the version that its caller was compiled for; this code handles both majors.
  void* runtime = create(loggerFor(library.major()), library.versionNumber());
  // If CUDA does not work, 10.6 and 11.2 return the base of a null object: not null, but an address in the first page.
  if (reinterpret_cast<uintptr_t>(runtime) < kFirstPage) {
    throwError("TensorRT cannot start (" + lastError() + "); look at nvidia-smi on this machine");
  }
  runtime_.reset(static_cast<nvinfer1::IRuntime*>(runtime));
  engine_.reset(runtime_->deserializeCudaEngine(plan.data(), plan.size()));
  if (engine_ == nullptr) throwError(name + ": TensorRT cannot load it (" + lastError() + "); build the plan again");
  if (library.major() < kFirstVersionedMajor) {
    ten_ = tensorrt10::implementationOf<tensorrt10::CudaEngine>(engine_.get());
  }
}

int32_t TensorRtEngine::tensorCount() const {
  return ten_ != nullptr ? ten_->getNbIOTensors() : engine_->getNbIOTensors();
}

nvinfer1::TensorIOMode TensorRtEngine::mode(const char* name) const {
  return ten_ != nullptr ? ten_->getTensorIOMode(name) : engine_->getTensorIOMode(name);
}

nvinfer1::DataType TensorRtEngine::type(const char* name) const {
  return ten_ != nullptr ? ten_->getTensorDataType(name) : engine_->getTensorDataType(name);
}

std::unique_ptr<TensorRtContext> TensorRtEngine::newContext() const {
  constexpr auto kStrategy = nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED;
  auto* context =
      ten_ != nullptr ? ten_->createExecutionContext(kStrategy) : engine_->createExecutionContext(kStrategy);
  if (context == nullptr) {
    throwError("TensorRT cannot make an execution context (" + lastError() +
               "); free GPU memory or build with a smaller profile");
  }
  return std::make_unique<TensorRtContext>(context, version_);
}

TensorRtContext::TensorRtContext(nvinfer1::IExecutionContext* context, int version)
    : version_(version), context_(context) {
  if (version / 10000 < kFirstVersionedMajor) {
    ten_ = tensorrt10::implementationOf<tensorrt10::ExecutionContext>(context);
  }
}

void TensorRtContext::setShape(const char* name, const Dims& shape) {
  const nvinfer1::Dims dims = toDims(shape);
  if (ten_ != nullptr ? ten_->setInputShape(name, dims) : context_->setInputShape(name, dims)) return;
  throwError("the engine refused shape [", join(shape, ", "), "] for '", name, "' (", lastError(),
             "); compare with its profile in padfree inspect");
}

void TensorRtContext::inferShapes() {
  const char* name = nullptr;
  const int32_t missing = ten_ != nullptr ? ten_->inferShapes(1, &name) : context_->inferShapes(1, &name);
  if (missing != 0) {
    throwError("the engine has no shape for '", name == nullptr ? "" : name, "' (", lastError(),
               "); build the plan again");
  }
}

Dims TensorRtContext::shape(const char* name) const {
  const nvinfer1::Dims dims = ten_ != nullptr ? ten_->getTensorShape(name) : context_->getTensorShape(name);
  return dims.nbDims < 0 ? Dims{-1} : Dims(dims.d, dims.d + dims.nbDims);
}

size_t TensorRtContext::scratchBytes() {
  return ten_ != nullptr ? ten_->updateDeviceMemorySizeForShapes() : context_->updateDeviceMemorySizeForShapes();
}

void TensorRtContext::setAddress(const char* name, void* memory) {
  if (ten_ != nullptr ? ten_->setTensorAddress(name, memory) : context_->setTensorAddress(name, memory)) return;
  throwError("TensorRT refused the memory of '", name, "' (", lastError(), "); build the plan again");
}

void TensorRtContext::setScratch(void* memory, size_t bytes) {
  if (ten_ == nullptr) {
    context_->setDeviceMemoryV2(memory, static_cast<int64_t>(bytes));
  } else if (version_ >= kDeviceMemoryV2) {
    ten_->setDeviceMemoryV2(memory, static_cast<int64_t>(bytes));
  } else {
    ten_->setDeviceMemory(memory);
  }
}

void TensorRtContext::enqueue(CUstream stream) {
  auto* runtime_stream = reinterpret_cast<cudaStream_t>(stream);
  if (ten_ != nullptr ? ten_->enqueueV3(runtime_stream) : context_->enqueueV3(runtime_stream)) return;
  throwError("TensorRT failed to run the engine (" + lastError() + "); look at the server's log");
}

std::string lastError() {
  const std::lock_guard<std::mutex> lock(error_mutex);
  return newest_error;
}

}  // namespace padfree::engine
