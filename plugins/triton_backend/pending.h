// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "triton_backend/engine_library.h"
#include "triton_backend/failure.h"
#include "triton_backend/metadata.h"
#include "triton_backend/request.h"

namespace padfree {

struct Piece;

// When the run of a request began and ended; nanoseconds of the steady clock, 0 where there was none.
struct Times {
  uint64_t started = 0;
  uint64_t ended = 0;
};

// A request that is ours until it is answered, exactly once: with its outputs, or with an error.
//
// One thread at a time answers. `pieces_left` is counted by the thread that cuts requests into runs, and afterwards by
// the one that finishes runs.
class Pending {
 public:
  Pending(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, uint64_t called);
  ~Pending();  // answers with an error where nothing has answered
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  bool isCancelled() const;
  // The request is still there, and so are its buffers.
  bool isOpen() const { return request_ != nullptr; }

  // Copies the rows of a piece from a lane's outputs, where they begin at this token and this sequence.
  void take(const Piece& piece, const Metadata& metadata, Lane& lane, int64_t token, int64_t sequence);
  void fail(const Failure& failure);  // the first failure counts; whoever calls it sends it with `answer`
  bool hasFailed() const { return failed_.load(std::memory_order_acquire); }
  const std::optional<Failure>& failure() const { return failure_; }  // of who answers
  // Sends what was taken, or the failure, and releases the request.
  void answer(const Times& times);

  RequestData data;
  size_t pieces_left = 0;

  TRITONBACKEND_Request* request() const { return request_; }

 private:
  struct Target {
    char* buffer;
    bool on_device;
  };

  void openResponse(const Metadata& metadata);
  void takeTokens(const Piece& piece, const Output& output, size_t number, Lane& lane, int64_t token,
                  const Target& target) const;

  TRITONBACKEND_ModelInstance* instance_;
  TRITONBACKEND_Request* request_;
  TRITONBACKEND_Response* response_ = nullptr;
  std::vector<Target> targets_;  // one for every wanted output, once the first piece has come
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;
  uint64_t called_;
};

}  // namespace padfree
