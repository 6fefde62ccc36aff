// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/instance.h"

#include <utility>

#include "triton_backend/clock.h"

namespace padfree {
namespace {

const Failure& cancelled() {
  static const Failure kCancelled("the request was cancelled", TRITONSERVER_ERROR_CANCELLED);
  return kCancelled;
}

// Runs `body`; what it throws is what happened to a run.
template <class Body>
std::optional<Failure> attempt(Body&& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Failure& failure) {
    return failure;
  } catch (const std::exception& error) {
    return Failure(error.what(), TRITONSERVER_ERROR_INTERNAL);
  }
}

}  // namespace

Instance::Instance(std::shared_ptr<Model> model, TRITONBACKEND_ModelInstance* handle, int32_t device)
    : model_(std::move(model)), handle_(handle), engine_(model_->engineOn(device)) {
  for (int32_t i = 0; i < model_->settings().contexts; ++i) {
    lanes_.push_back(std::make_unique<Lane>(engine_));
    free_.push_back(lanes_.back().get());
  }
  finisher_ = std::thread([this] { finishRuns(); });
}

Instance::~Instance() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  finisher_.join();
}

void Instance::execute(TRITONBACKEND_Request** requests, uint32_t count) {
  const auto pending = read(requests, count);
  for (Run& run : cut(pending, model_->budget())) startRun(std::move(run));
  waitForLane();
}

// Those that can run; the others are answered.
std::vector<std::shared_ptr<Pending>> Instance::read(TRITONBACKEND_Request** requests, uint32_t count) {
  const uint64_t called = nowNs();
  std::vector<std::shared_ptr<Pending>> good;
  // All of them first: whatever happens from here on, each is ours and gets an answer.
  std::vector<std::shared_ptr<Pending>> all;
  all.reserve(count);
  for (uint32_t i = 0; i < count; ++i) all.push_back(std::make_shared<Pending>(handle_, requests[i], called));
  for (const auto& pending : all) {
    auto failure = attempt([&] {
      if (pending->isCancelled()) throw cancelled();
      pending->data = readRequest(pending->request(), model_->metadata(), *engine_);
    });
    if (failure) {
      pending->fail(*failure);
      pending->answer({called, 0, 0});
    } else {
      good.push_back(pending);
    }
  }
  return good;
}

void Instance::startRun(Run run) {
  Lane* lane = takeLane();
  run.started_ns = nowNs();
  run.failure = attempt([&] {
    if (!skipCancelled(run)) throw cancelled();
    start(run, model_->metadata(), *lane);
  });
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    started_.push_back({std::move(run), lane});
  }
  changed_.notify_all();
}

Lane* Instance::takeLane() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty(); });
  Lane* lane = free_.back();
  free_.pop_back();
  return lane;
}

void Instance::waitForLane() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty(); });
}

void Instance::finishRuns() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !started_.empty(); });
    if (started_.empty()) return;
    Started started = std::move(started_.front());
    started_.pop_front();
    lock.unlock();
    finish(started);
    lock.lock();
  }
}

void Instance::finish(Started& started) {
  Run& run = started.run;
  if (!run.failure) run.failure = attempt([&] { started.lane->wait(); });
  const uint64_t ended = nowNs();
  int64_t token = 0, sequence = 0;
  for (Piece& piece : run.pieces) {
    Pending& pending = *piece.pending;
    auto failure = piece.is_skipped ? std::optional<Failure>(cancelled()) : run.failure;
    if (!failure && !pending.hasFailed()) {
      failure = attempt([&] { pending.take(piece, model_->metadata(), *started.lane, token, sequence); });
    }
    if (failure) pending.fail(*failure);
    if (!piece.is_skipped) {
      for (size_t i = piece.first; i < piece.last; ++i) token += pending.data.seq_lens[i];
      sequence += static_cast<int64_t>(piece.last - piece.first);
    }
    if (--pending.pieces_left == 0) pending.answer({0, run.started_ns, ended});
  }
  if (!run.failure) {
    succeeded(TRITONBACKEND_ModelInstanceReportBatchStatistics(handle_, run.sizes.sequences, run.started_ns,
                                                               run.started_ns, ended, nowNs()));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(started.lane);
  }
  changed_.notify_all();
}

}  // namespace padfree
