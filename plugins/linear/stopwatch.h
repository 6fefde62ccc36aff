// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>

namespace padfree {

// Times launches on a stream of its own, as a CUDA graph: they are so short that the host could not keep up otherwise.
class Stopwatch {
 public:
  cudaError_t open() {
    cudaError_t status = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    for (cudaEvent_t& event : events_) {
      if (status == cudaSuccess) status = cudaEventCreate(&event);
    }
    return status;
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }

  // The time of one call of launch(i), which enqueues work on the stream, averaged over i in [0, launches).
  template <typename Launch>
  cudaError_t time(int launches, Launch launch, float& milliseconds) {
    cudaGraphExec_t graph = nullptr;
    cudaError_t status = capture(launches, launch, graph);
    milliseconds = std::numeric_limits<float>::max();
    for (int run = -1; run < kRuns && status == cudaSuccess; ++run) {
      float elapsed_ms = 0;
      status = cudaEventRecord(events_[0], stream_);
      if (status == cudaSuccess) status = cudaGraphLaunch(graph, stream_);
      if (status == cudaSuccess) status = cudaEventRecord(events_[1], stream_);
      if (status == cudaSuccess) status = cudaEventSynchronize(events_[1]);
      if (status == cudaSuccess) status = cudaEventElapsedTime(&elapsed_ms, events_[0], events_[1]);
      if (run >= 0) milliseconds = std::min(milliseconds, elapsed_ms / launches);
    }
    if (graph != nullptr) cudaGraphExecDestroy(graph);
    return status;
  }

 private:
  static constexpr int kRuns = 3;  // of a graph of launches; the fastest counts

  template <typename Launch>
  cudaError_t capture(int launches, Launch launch, cudaGraphExec_t& graph) {
    cudaGraph_t captured_graph = nullptr;
    cudaError_t status = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess) return status;
    for (int i = 0; i < launches && status == cudaSuccess; ++i) status = launch(i);
    const cudaError_t end_status = cudaStreamEndCapture(stream_, &captured_graph);
    if (status == cudaSuccess) status = end_status;
    if (status == cudaSuccess) status = cudaGraphInstantiate(&graph, captured_graph, 0);
    if (captured_graph != nullptr) cudaGraphDestroy(captured_graph);
    return status;
  }

  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, 2> events_{};
};

}  // namespace padfree
