// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "triton_backend/metrics.h"
#include "triton_backend/triton_abi.h"
#include "triton_batching/failure.h"

namespace padfree {

// When the run of a request began and ended, in nanoseconds of the steady clock; 0 if there was no run.
struct Times {
  uint64_t started = 0;
  uint64_t ended = 0;
};

// A request that is ours until it is answered. That happens exactly once: with its outputs, or with an error.
class OpenRequest {
 public:
  // Where an output's values go.
  struct Target {
    char* buffer;
    bool on_device;
  };

  OpenRequest(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, uint64_t called);
  ~OpenRequest();  // answers with an error if nothing has answered
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

  // Whether the request, and with it its buffers, still exists.
  bool isOpen() const { return request_ != nullptr; }
  bool isCancelled() const;
  TRITONBACKEND_Request* handle() const { return request_; }

  void openResponse();
  bool hasResponse() const { return response_ != nullptr; }
  // Memory for an output of the response; throws Failure if the server has none.
  Target addOutput(const std::string& name, TRITONSERVER_DataType type, const std::vector<int64_t>& shape,
                   int64_t bytes);
  // The same in host memory; throws Failure if the caller wants it on a device.
  char* addHostOutput(const std::string& name, TRITONSERVER_DataType type, const std::vector<int64_t>& shape,
                      int64_t bytes);

  void fail(const Failure& failure);  // only the first failure counts; `answer` sends it
  bool hasFailed() const { return failed_.load(std::memory_order_acquire); }
  // Sends the outputs, or the failure, which `metrics` count, and releases the request.
  void answer(const Times& times, const InstanceMetrics* metrics = nullptr);

 private:
  TRITONBACKEND_ModelInstance* instance_;
  TRITONBACKEND_Request* request_;
  TRITONBACKEND_Response* response_ = nullptr;
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;
  uint64_t called_;
};

// The failure of a request that its caller has cancelled.
const Failure& cancelled();

}  // namespace padfree
