// SPDX-License-Identifier: Apache-2.0
// Stands in for CUDA's driver, libcuda.so.1: two GPUs whose memory is the host's. Work waits in its stream until
// somebody synchronises: what reads results too early finds none. A thread may work on the streams of its current GPU
// alone.
#include "engine/fake_cuda.h"

#include <cuda.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace {

using Work = std::vector<std::function<void()>>;

std::atomic<int> live{0}, launches{0};
std::mutex mutex;  // of all streams
constexpr int kGpus = 2, kNone = -1;
char contexts[kGpus];
thread_local int current_gpu = kNone;

struct Stream {
  int gpu = current_gpu;
  Work waiting, captured;
  bool captures = false;
};

Stream* of(CUstream stream) {
  return reinterpret_cast<Stream*>(stream);
}

void put(CUstream handle, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex);
  Stream* stream = of(handle);
  (stream->captures ? stream->captured : stream->waiting).push_back(std::move(work));
}

CUresult inContext(CUresult result = CUDA_SUCCESS) {
  return current_gpu == kNone ? CUDA_ERROR_INVALID_CONTEXT : result;
}

CUresult inContextOf(CUstream stream) {
  return of(stream)->gpu == current_gpu ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

void fakeCudaEnqueue(void* stream, std::function<void()> work) {
  if (inContextOf(static_cast<CUstream>(stream)) == CUDA_SUCCESS) put(static_cast<CUstream>(stream), std::move(work));
}

int fakeCudaLive() {
  return live;
}

int fakeCudaLaunches() {
  return launches;
}

#pragma GCC visibility push(default)
extern "C" {

CUresult cuInit(unsigned) {
  return std::getenv("FAKE_CUDA_BROKEN") == nullptr ? CUDA_SUCCESS : CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}
CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_STAND_IN";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  const char* gpus = std::getenv("FAKE_CUDA_GPUS");
  *count = gpus == nullptr ? kGpus : std::atoi(gpus);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "a stand-in", size);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice gpu) {
  ++live;
  *context = reinterpret_cast<CUcontext>(contexts + gpu);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  --live;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  current_gpu = context == nullptr ? kNone : static_cast<int>(reinterpret_cast<char*>(context) - contexts);
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  ++live;
  *memory = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(512, (bytes + 511) / 512 * 512));
  std::memset(reinterpret_cast<void*>(*memory), 0xee, bytes);
  return inContext();
}
CUresult cuMemFree(CUdeviceptr memory) {
  --live;
  std::free(reinterpret_cast<void*>(memory));
  return inContext();
}
CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  ++live;
  *memory = std::malloc(bytes);
  std::memset(*memory, 0xdd, bytes);
  return inContext();
}
CUresult cuMemFreeHost(void* memory) {
  --live;
  std::free(memory);
  return inContext();
}
CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  put(stream, [=] { std::memcpy(reinterpret_cast<void*>(destination), reinterpret_cast<void*>(source), bytes); });
  return inContextOf(stream);
}
CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t bytes, CUstream stream) {
  put(stream, [=] { std::memset(reinterpret_cast<void*>(destination), value, bytes); });
  return inContextOf(stream);
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  ++live;
  *stream = reinterpret_cast<CUstream>(new Stream);
  return inContext();
}
CUresult cuStreamDestroy(CUstream stream) {
  --live;
  delete of(stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  Work work;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    work.swap(of(stream)->waiting);
  }
  for (const auto& step : work) step();
  return inContextOf(stream);
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  const std::lock_guard<std::mutex> lock(mutex);
  of(stream)->captures = true;
  return inContextOf(stream);
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++live;
  *graph = reinterpret_cast<CUgraph>(new Work(std::move(of(stream)->captured)));
  of(stream)->captured.clear();
  of(stream)->captures = false;
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  ++live;
  *exec = reinterpret_cast<CUgraphExec>(new Work(*reinterpret_cast<Work*>(graph)));
  return inContext();
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  ++launches;
  const Work& work = *reinterpret_cast<Work*>(exec);
  put(stream, [&work] {
    for (const auto& step : work) step();
  });
  return inContextOf(stream);
}
CUresult cuGraphDestroy(CUgraph graph) {
  --live;
  delete reinterpret_cast<Work*>(graph);
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec exec) {
  --live;
  delete reinterpret_cast<Work*>(exec);
  return CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
