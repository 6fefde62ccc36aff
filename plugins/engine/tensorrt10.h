// SPDX-License-Identifier: Apache-2.0
// TensorRT's engine and context as 10.x has them, up to the last function that is called here.
//
// In all versions, objects hold a pointer to an implementation, whose functions the headers call. The headers here are
// those of 11.x: 11.0 removed deprecated functions from the virtual tables of engine and context, so that the functions
// after them moved. The runtime's table is the same up to the only function that is called. This was compared with the
// headers of all releases from 10.0 to 11.4 (include/NvInferImpl.h of github.com/NVIDIA/TensorRT).
#pragma once

#include "NvInferRuntime.h"

namespace padfree::tensorrt10 {

class CudaEngine {
 public:
  virtual void completeDestructor() = 0;
  virtual void deletingDestructor() = 0;
  virtual void getPImpl() = 0;
  virtual void getNbLayers() = 0;
  virtual void serialize() = 0;
  virtual nvinfer1::IExecutionContext* createExecutionContext(
      nvinfer1::ExecutionContextAllocationStrategy strategy) noexcept = 0;
  virtual void createExecutionContextWithoutDeviceMemory() = 0;
  virtual void getDeviceMemorySize() = 0;
  virtual void isRefittable() = 0;
  virtual void getName() = 0;
  virtual void getNbOptimizationProfiles() = 0;
  virtual void getProfileTensorValues() = 0;
  virtual void getEngineCapability() = 0;
  virtual void setErrorRecorder() = 0;
  virtual void getErrorRecorder() = 0;
  virtual void hasImplicitBatchDimension() = 0;
  virtual void getTacticSources() = 0;
  virtual void getProfilingVerbosity() = 0;
  virtual void createEngineInspector() = 0;
  virtual void getTensorShape() = 0;
  virtual nvinfer1::DataType getTensorDataType(const char* name) const noexcept = 0;
  virtual void getTensorLocation() = 0;
  virtual void isShapeInferenceIO() = 0;
  virtual nvinfer1::TensorIOMode getTensorIOMode(const char* name) const noexcept = 0;
  virtual void getTensorBytesPerComponent() = 0;
  virtual void getTensorComponentsPerElement() = 0;
  virtual void getTensorFormat() = 0;
  virtual void getTensorFormatDesc() = 0;
  virtual void getTensorVectorizedDim() = 0;
  virtual void getProfileShape() = 0;
  virtual int32_t getNbIOTensors() const noexcept = 0;

 protected:
  ~CudaEngine() = default;  // TensorRT's is virtual, and comes first in the table
};

class ExecutionContext {
 public:
  virtual void completeDestructor() = 0;
  virtual void deletingDestructor() = 0;
  virtual void getPImpl() = 0;
  virtual void setDebugSync() = 0;
  virtual void getDebugSync() = 0;
  virtual void setProfiler() = 0;
  virtual void getProfiler() = 0;
  virtual void getEngine() = 0;
  virtual void setName() = 0;
  virtual void getName() = 0;
  virtual void setDeviceMemory(void* memory) noexcept = 0;
  virtual void getOptimizationProfile() = 0;
  virtual void allInputDimensionsSpecified() = 0;
  virtual void allInputShapesSpecified() = 0;
  virtual void setErrorRecorder() = 0;
  virtual void getErrorRecorder() = 0;
  virtual void executeV2() = 0;
  virtual void setOptimizationProfileAsync() = 0;
  virtual void setEnqueueEmitsProfile() = 0;
  virtual void getEnqueueEmitsProfile() = 0;
  virtual void reportToProfiler() = 0;
  virtual bool setInputShape(const char* name, const nvinfer1::Dims& dims) noexcept = 0;
  virtual nvinfer1::Dims getTensorShape(const char* name) const noexcept = 0;
  virtual void getTensorStrides() = 0;
  virtual bool setTensorAddress(const char* name, void* data) noexcept = 0;
  virtual void getTensorAddress() = 0;
  virtual void setInputTensorAddress() = 0;
  virtual void setOutputTensorAddress() = 0;
  virtual int32_t inferShapes(int32_t most_names, const char** names) noexcept = 0;
  virtual void setInputConsumedEvent() = 0;
  virtual void getInputConsumedEvent() = 0;
  virtual void getOutputTensorAddress() = 0;
  virtual void setOutputAllocator() = 0;
  virtual void getOutputAllocator() = 0;
  virtual void getMaxOutputSize() = 0;
  virtual void setTemporaryStorageAllocator() = 0;
  virtual void getTemporaryStorageAllocator() = 0;
  virtual bool enqueueV3(cudaStream_t stream) noexcept = 0;
  virtual void setPersistentCacheLimit() = 0;
  virtual void getPersistentCacheLimit() = 0;
  virtual void setNvtxVerbosity() = 0;
  virtual void getNvtxVerbosity() = 0;
  virtual void setAuxStreams() = 0;
  virtual void setDebugListener() = 0;
  virtual void getDebugListener() = 0;
  virtual void setTensorDebugState() = 0;
  virtual void getDebugState() = 0;
  virtual void setAllTensorsDebugState() = 0;
  virtual size_t updateDeviceMemorySizeForShapes() noexcept = 0;
  virtual void setDeviceMemoryV2(void* memory, int64_t bytes) noexcept = 0;  // from 10.1 on

 protected:
  ~ExecutionContext() = default;
};

// The implementation of an engine or a context; the pointer to it follows the object's own table.
template <class Implementation>
Implementation* implementationOf(const void* object) {
  return static_cast<Implementation*>(static_cast<void* const*>(object)[1]);
}

}  // namespace padfree::tensorrt10
