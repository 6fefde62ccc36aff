// SPDX-License-Identifier: Apache-2.0
// TensorRT in the server's process, whichever version it is: 10.x and 11.x, with one binary.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/tensorrt10.h"
#include "shell/tensorrt_abi.h"

namespace padfree::engine {

using Dims = std::vector<int64_t>;

// TensorRT's library: the one in the process, or else one loaded by its name.
class TensorRtLibrary {
 public:
  // wanted: the version that built a plan, such as "10.6.0". Throws std::runtime_error if there is none of that
  // version.
  explicit TensorRtLibrary(const std::string& wanted);

  int major() const { return tensorrt_.major; }
  const std::string& version() const { return version_; }  // "10.6.0"
  int versionNumber() const { return number_; }
  const TensorRt& handle() const { return tensorrt_; }

 private:
  TensorRt tensorrt_{};
  int number_ = 0;
  std::string version_;
};

// Registers padfree's plugins in every TensorRT of the process. Throws std::runtime_error if their libraries are
// missing.
void loadPlugins();

class TensorRtContext;

// A deserialised plan.
class TensorRtEngine {
 public:
  TensorRtEngine(const TensorRtLibrary& library, const std::string& plan, const std::string& name);

  int32_t tensorCount() const;
  nvinfer1::TensorIOMode mode(const char* name) const;
  nvinfer1::DataType type(const char* name) const;
  std::unique_ptr<TensorRtContext> newContext() const;  // without device memory of its own

 private:
  const int version_;
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  tensorrt10::CudaEngine* ten_ = nullptr;  // only with TensorRT 10.x
};

// An execution context, for one caller at a time.
class TensorRtContext {
 public:
  TensorRtContext(nvinfer1::IExecutionContext* context, int version);

  void setShape(const char* name, const Dims& shape);
  void inferShapes();
  Dims shape(const char* name) const;
  size_t scratchBytes();  // for the shapes that were set
  void setAddress(const char* name, void* memory);
  void setScratch(void* memory, size_t bytes);
  void enqueue(CUstream stream);

 private:
  const int version_;
  std::unique_ptr<nvinfer1::IExecutionContext> context_;
  tensorrt10::ExecutionContext* ten_ = nullptr;
};

// The newest error that TensorRT logged.
std::string lastError();

}  // namespace padfree::engine
