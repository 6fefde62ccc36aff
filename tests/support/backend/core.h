// SPDX-License-Identifier: Apache-2.0
// Stands in for Triton's core where the backend is driven without a server. It holds the backend to the core's rules:
// an answer for every request, one, before its release, and nothing of a request read afterwards, for its buffers are
// freed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "triton_backend/triton_abi.h"

namespace core {

struct Buffer {
  std::unique_ptr<char[]> data;
  uint64_t bytes;
  bool on_device;
};

struct Tensor {
  std::string name;
  TRITONSERVER_DataType type;
  std::vector<int64_t> shape;
  std::vector<Buffer> buffers;
  uint64_t bytes = 0;
};

struct Answer {
  bool is_error = false;
  int code = 0;
  std::string message;
  std::map<std::string, Tensor> outputs;
};

struct Request {
  std::vector<Tensor> inputs;
  std::vector<std::string> wanted;
  bool outputs_on_device = false;
  std::atomic<bool> is_cancelled{false};
  std::atomic<int> answers{0}, reports{0}, releases{0};
  std::function<void(const Answer&)> check;  // called with the answer
};

struct Backend {
  std::string config;
  void* state = nullptr;
};

struct Model {
  Backend* backend;
  std::string folder, config;
  void* state = nullptr;
};

struct Instance {
  Model* model;
  std::string name;
  int device;
  void* state = nullptr;
};

extern std::atomic<int> live_responses, live_metrics;
extern std::atomic<int> fail_every;  // of calls for responses and buffers; 0: none

[[noreturn]] void fail(const std::string& reason);

// The message of an error, "" for none; deletes it.
std::string take(TRITONSERVER_Error* error);

}  // namespace core
