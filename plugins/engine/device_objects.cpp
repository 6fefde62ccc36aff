// SPDX-License-Identifier: Apache-2.0
#include "engine/device_objects.h"

#include "common/text.h"

namespace padfree::engine {
namespace {

constexpr int kNameBytes = 256;

// cuda.h declares pointers to device memory as integers.
CUdeviceptr address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace

Device::Device(int32_t number) : number_(number) {
  const Driver& cuda = driver();
  int count = 0;
  check(cuda.deviceCount(&count), "count the GPUs");
  if (number < 0) {
    throwError(
        "this instance is of kind KIND_CPU, and a plan runs on a GPU, allowed: KIND_GPU; correct "
        "instance_group in config.pbtxt");
  }
  if (number >= count) {
    throwError("there is no GPU ", number, ", this machine has ", count,
               "; correct gpus in config.pbtxt's instance_group");
  }
  char name[kNameBytes] = "";
  int major = 0, minor = 0;
  check(cuda.deviceName(name, kNameBytes, number), "name the GPU");
  check(cuda.deviceAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, number), "ask the GPU");
  check(cuda.deviceAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, number), "ask the GPU");
  name_ = name;
  compute_capability_ = text(major, '.', minor);
  check(cuda.retainContext(&context_, number), "open the GPU");
}

Device::~Device() {
  driver().releaseContext(number_);
}

void Device::makeCurrent() const {
  check(driver().setContext(context_), "use the GPU");
}

Memory::Memory(Kind kind, size_t bytes) : kind_(kind), bytes_(bytes) {
  if (kind == Kind::kDevice) {
    CUdeviceptr memory = 0;
    check(driver().allocate(&memory, bytes), "allocate GPU memory");
    data_ = reinterpret_cast<char*>(memory);
  } else {
    void* memory = nullptr;
    check(driver().allocateHost(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE), "allocate pinned memory");
    data_ = static_cast<char*>(memory);
  }
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  if (kind_ == Kind::kDevice) {
    driver().free(address(data_));
  } else {
    driver().freeHost(data_);
  }
}

Graph::Graph(CUgraph graph) {
  const CUresult result = driver().instantiate(&graph_, graph, 0);
  driver().destroyGraph(graph);
  check(result, "make a CUDA graph");
}

Graph::~Graph() {
  driver().destroyGraphExec(graph_);
}

void Graph::launch(CUstream stream) const {
  check(driver().launch(graph_, stream), "launch a CUDA graph");
}

Stream::Stream() {
  check(driver().createStream(&stream_, CU_STREAM_NON_BLOCKING), "create a stream");
}

Stream::~Stream() {
  driver().synchronize(stream_);
  driver().destroyStream(stream_);
}

void Stream::copy(void* destination, const void* source, size_t bytes) const {
  if (bytes > 0) check(driver().copy(address(destination), address(source), bytes, stream_), "copy tensors");
}

void Stream::zero(void* device_memory, size_t bytes) const {
  if (bytes > 0) check(driver().zero(address(device_memory), 0, bytes, stream_), "fill tensors with zeros");
}

void Stream::synchronize() const {
  check(driver().synchronize(stream_), "run the engine");
}

}  // namespace padfree::engine
