// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/open_request.h"

#include "triton_backend/clock.h"

namespace padfree {

OpenRequest::OpenRequest(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, uint64_t called)
    : instance_(instance), request_(request), called_(called) {}

OpenRequest::~OpenRequest() {
  if (!isOpen()) return;
  fail(Failure("the request was given up before it ran", TRITONSERVER_ERROR_INTERNAL));
  answer({});
}

bool OpenRequest::isCancelled() const {
  bool is_cancelled = false;
  return succeeded(TRITONBACKEND_RequestIsCancelled(request_, &is_cancelled)) && is_cancelled;
}

void OpenRequest::openResponse() {
  check(TRITONBACKEND_ResponseNew(&response_, request_));
}

OpenRequest::Target OpenRequest::addOutput(const std::string& name, TRITONSERVER_DataType type,
                                           const std::vector<int64_t>& shape, int64_t bytes) {
  TRITONBACKEND_Output* output = nullptr;
  check(TRITONBACKEND_ResponseOutput(response_, &output, name.c_str(), type, shape.data(),
                                     static_cast<uint32_t>(shape.size())));
  void* buffer = nullptr;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  check(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory, &memory_id));
  return {static_cast<char*>(buffer), memory == TRITONSERVER_MEMORY_GPU};
}

char* OpenRequest::addHostOutput(const std::string& name, TRITONSERVER_DataType type, const std::vector<int64_t>& shape,
                                 int64_t bytes) {
  const Target target = addOutput(name, type, shape, bytes);
  if (!target.on_device) return target.buffer;
  throw Failure("output '" + name + "' is wanted in GPU memory, allowed: memory of the host; ask for it there");
}

void OpenRequest::fail(const Failure& failure) {
  if (!failure_) failure_ = failure;
  failed_.store(true, std::memory_order_release);
}

void OpenRequest::answer(const Times& times, const InstanceMetrics* metrics) {
  if (failure_ && metrics != nullptr) metrics->count(*failure_);
  TRITONSERVER_Error* error = failure_ ? failure_->toTriton() : nullptr;
  if (response_ != nullptr || succeeded(TRITONBACKEND_ResponseNew(&response_, request_))) {
    succeeded(TRITONBACKEND_ResponseSend(response_, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
  }
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
  const uint64_t now = nowNs(), started = times.started == 0 ? now : times.started;
  const uint64_t ended = times.ended == 0 ? now : times.ended;
  succeeded(TRITONBACKEND_ModelInstanceReportStatistics(instance_, request_, !failure_, called_, started, ended, now));
  succeeded(TRITONBACKEND_RequestRelease(request_, TRITONSERVER_REQUEST_RELEASE_ALL));
  request_ = nullptr;
}

const Failure& cancelled() {
  static const Failure kCancelled("the request was cancelled", TRITONSERVER_ERROR_CANCELLED);
  return kCancelled;
}

}  // namespace padfree
