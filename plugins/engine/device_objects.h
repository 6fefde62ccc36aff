// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/driver.h"

namespace padfree::engine {

// A GPU's primary context, in which TensorRT works too.
class Device {
 public:
  explicit Device(int32_t number);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void makeCurrent() const;  // in the calling thread
  int32_t number() const { return number_; }
  const std::string& name() const { return name_; }
  const std::string& computeCapability() const { return compute_capability_; }

 private:
  int32_t number_;
  std::string name_, compute_capability_;
  CUcontext context_ = nullptr;
};

// Memory on the current device, or pinned memory of the host.
class Memory {
 public:
  enum class Kind { kDevice, kPinned };

  Memory(Kind kind, size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept
      : kind_(other.kind_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  Memory& operator=(Memory&&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Kind kind_;
  size_t bytes_;
  char* data_ = nullptr;
};

// A graph that was captured from a stream, ready to be launched.
class Graph {
 public:
  explicit Graph(CUgraph graph);  // takes over `graph`
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(CUstream stream) const;

 private:
  CUgraphExec graph_ = nullptr;
};

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream handle() const { return stream_; }
  void copy(void* destination, const void* source, size_t bytes) const;  // each in host or device memory
  void zero(void* device_memory, size_t bytes) const;
  void synchronize() const;

  // Records what `enqueue` puts on the stream. Throws std::runtime_error if it cannot be captured; the stream stays
  // usable.
  template <class Enqueue>
  CUgraph capture(Enqueue&& enqueue) const {
    check(driver().beginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin a capture");
    CUgraph graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      driver().endCapture(stream_, &graph);  // leaves capture mode; the graph is broken anyway
      throw;
    }
    check(driver().endCapture(stream_, &graph), "capture a run");
    return graph;
  }

 private:
  CUstream stream_ = nullptr;
};

}  // namespace padfree::engine
