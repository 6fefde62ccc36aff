// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/instance.h"

#include <utility>

#include "triton_backend/clock.h"

namespace padfree {

Instance::Instance(std::shared_ptr<Model> model, TRITONBACKEND_ModelInstance* handle, int32_t device)
    : model_(std::move(model)),
      handle_(handle),
      engine_(model_->engineOn(device)),
      metrics_(model_->backend().families, model_->name(), model_->version(), handle,
               {Counter::kTokens, Counter::kPaddedTokens, Counter::kSequences, Counter::kRuns}) {
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

// Returns the requests that can run; the others are answered.
std::vector<std::shared_ptr<Pending>> Instance::read(TRITONBACKEND_Request** requests, uint32_t count) {
  const uint64_t called = nowNs();
  std::vector<std::shared_ptr<Pending>> good;
  // All requests are taken over first: whatever happens from here on, each is ours and gets an answer.
  std::vector<std::shared_ptr<Pending>> all;
  all.reserve(count);
  for (uint32_t i = 0; i < count; ++i) all.push_back(std::make_shared<Pending>(handle_, requests[i], called));
  for (const auto& pending : all) {
    auto failure = attempt([&] {
      if (pending->isCancelled()) throw cancelled();
      pending->data = readRequest(pending->handle(), model_->metadata(), *engine_);
    });
    if (failure) {
      pending->fail(*failure);
      answer(*pending, {});
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
  if (!run.failure) count(run.sizes);  // before the answers, so that whoever has one finds it counted
  giveResults(started, ended);
  if (!run.failure) {
    succeeded(TRITONBACKEND_ModelInstanceReportBatchStatistics(handle_, run.sizes.sequences, run.started_ns,
                                                               run.started_ns, ended, nowNs()));
    started.lane->settle();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(started.lane);
  }
  changed_.notify_all();
}

void Instance::count(const PadfreeSizes& sizes) const {
  const auto sequences = static_cast<double>(sizes.sequences);
  metrics_.add(Counter::kTokens, static_cast<double>(sizes.tokens));
  metrics_.add(Counter::kPaddedTokens, sequences * static_cast<double>(sizes.slots));
  metrics_.add(Counter::kSequences, sequences);
  metrics_.add(Counter::kRuns, 1);
}

// Every piece gets its rows, or the run's failure; requests that have all of theirs are answered.
void Instance::giveResults(Started& started, uint64_t ended) {
  int64_t token = 0, sequence = 0;
  for (Piece& piece : started.run.pieces) {
    Pending& pending = *piece.pending;
    auto failure = piece.is_skipped ? std::optional<Failure>(cancelled()) : started.run.failure;
    if (!failure && !pending.hasFailed()) {
      failure = attempt([&] { pending.take(piece, model_->metadata(), *started.lane, token, sequence); });
    }
    if (failure) pending.fail(*failure);
    if (!piece.is_skipped) {
      for (size_t i = piece.first; i < piece.last; ++i) token += pending.data.seq_lens[i];
      sequence += static_cast<int64_t>(piece.last - piece.first);
    }
    if (--pending.pieces_left == 0) answer(pending, {started.run.started_ns, ended});
  }
}

void Instance::answer(Pending& pending, const Times& times) const {
  if (const auto& failure = pending.failure()) metrics_.count(*failure);
  pending.answer(times);
}

}  // namespace padfree
