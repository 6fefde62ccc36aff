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
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }

  // The time of one call of launch(i), which enqueues work on the stream, averaged over i in [0, launches). `hot`: the
  // GPU goes on with the launches before while these are captured, so that its clock is that of kernels which follow
  // each other, as a model's do.
  template <typename Launch>
  cudaError_t time(int launches, bool hot, Launch launch, float& milliseconds) {
    cudaError_t status = cudaSuccess;
    const int busy_runs = hot && graph_ != nullptr ? static_cast<int>(kBusyMilliseconds / graph_milliseconds_) + 1 : 0;
    for (int run = 0; run < busy_runs && status == cudaSuccess; ++run) status = cudaGraphLaunch(graph_, stream_);
    cudaGraphExec_t graph = nullptr;
    if (status == cudaSuccess) status = capture(launches, launch, graph);
    if (status == cudaSuccess) status = cudaGraphLaunch(graph, stream_);
    for (size_t i = 0; i < events_.size() && status == cudaSuccess; ++i) {
      if (i > 0) status = cudaGraphLaunch(graph, stream_);
      if (status == cudaSuccess) status = cudaEventRecord(events_[i], stream_);
    }
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream_);
    graph_milliseconds_ = std::numeric_limits<float>::max();
    for (size_t i = 1; i < events_.size() && status == cudaSuccess; ++i) {
      float elapsed_ms = 0;
      status = cudaEventElapsedTime(&elapsed_ms, events_[i - 1], events_[i]);
      graph_milliseconds_ = std::min(graph_milliseconds_, elapsed_ms);
    }
    milliseconds = graph_milliseconds_ / static_cast<float>(launches);
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    graph_ = graph;
    return status;
  }

 private:
  static constexpr int kRuns = 3;  // of a graph of launches; the fastest counts
  static constexpr float kBusyMilliseconds = 1.f;

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
  std::array<cudaEvent_t, kRuns + 1> events_{};
  cudaGraphExec_t graph_ = nullptr;  // measured last
  float graph_milliseconds_ = 0;     // of all its launches
};

}  // namespace padfree
