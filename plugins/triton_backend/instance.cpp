// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/instance.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "triton_backend/clock.h"

namespace padfree {
namespace {

constexpr size_t kLargeTexts = size_t{1} << 16;  // bytes: some milliseconds of work
constexpr int kMixedCalls = 64;

std::vector<Counter> countersOf(const Model& model) {
  std::vector<Counter> counters = {Counter::kTokens, Counter::kPaddedTokens, Counter::kSequences, Counter::kRuns};
  if (model.texts() != nullptr) counters.push_back(Counter::kTruncatedTexts);
  return counters;
}

}  // namespace

Instance::Instance(std::shared_ptr<Model> model, TRITONBACKEND_ModelInstance* handle, int32_t device)
    : model_(std::move(model)),
      handle_(handle),
      engine_(model_->engineOn(device)),
      metrics_(model_->backend().families, model_->name(), model_->version(), handle, countersOf(*model_)) {
  for (int32_t i = 0; i < model_->settings().contexts; ++i) {
    lanes_.push_back(engine_->openLane());
    free_.push_back(lanes_.back().get());
  }
  model_->free_lanes += static_cast<int>(free_.size());
  finisher_ = std::thread([this] { finishRuns(); });
}

Instance::~Instance() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  finisher_.join();
  model_->free_lanes -= static_cast<int>(free_.size());
}

void Instance::execute(TRITONBACKEND_Request** requests, uint32_t count) {
  const Requests all = takeOver(requests, count);
  const bool is_mixed = areMixed(all);
  const auto large =
      std::find_if(all.begin(), all.end(), [](const auto& one) { return one->text_bytes > kLargeTexts; });
  Requests small;
  std::copy_if(all.begin(), large, std::back_inserter(small), [this](const auto& one) { return read(*one); });
  add(small, is_mixed);
  for (auto one = large; one != all.end(); ++one) {
    if (read(**one)) add({*one}, is_mixed);
  }
  // Where another instance is free, the next requests are for that.
  if (!is_mixed || model_->free_lanes > 0) waitForLane();
}

// Whether the inputs of recent calls differed.
bool Instance::areMixed(const Requests& requests) {
  size_t names = last_names_;
  attempt([&] { names = namesOf(requests.front()->handle()); });
  if (last_names_ != 0 && names != last_names_) {
    mixed_calls_ = kMixedCalls;
  } else if (mixed_calls_ > 0) {
    --mixed_calls_;
  }
  last_names_ = names;
  return mixed_calls_ > 0;
}

// Whatever happens from here on, each of the requests is ours and gets an answer. Large texts are last, so that the
// other requests do not wait until they are tokenised.
Instance::Requests Instance::takeOver(TRITONBACKEND_Request** requests, uint32_t count) const {
  const uint64_t called = nowNs();
  Requests all;
  all.reserve(count);
  for (uint32_t i = 0; i < count; ++i) all.push_back(std::make_shared<Pending>(handle_, requests[i], called));
  if (model_->texts() == nullptr) return all;
  for (const auto& pending : all) {
    attempt([&] { pending->text_bytes = textBytes(tensorsOf(pending->handle())); });
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& one, const auto& other) { return one->text_bytes < other->text_bytes; });
  return all;
}

// Returns whether the request can run; otherwise it is answered.
bool Instance::read(Pending& pending) const {
  const auto failure = attempt([&] {
    if (pending.isCancelled()) throw cancelled();
    pending.data = readRequest(pending.handle(), model_->metadata(), *engine_, model_->texts());
  });
  if (failure) {
    pending.fail(*failure);
    pending.answer({}, &metrics_);
    return false;
  }
  const auto& flags = pending.data.truncated;
  const auto truncated = std::count(flags.begin(), flags.end(), 1);
  if (truncated > 0) metrics_.add(Counter::kTruncatedTexts, static_cast<double>(truncated));
  return true;
}

void Instance::add(const Requests& requests, bool is_mixed) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cut(requests, model_->budget(), waiting_);
    starts_ = true;
  }
  startRuns(is_mixed ? 1 : 0);
}

// Starts runs, and waits for their lanes, but for the last `left` of them: without a lane these are left to the
// instance's thread.
void Instance::startRuns(size_t left) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return waiting_.size() <= left || !free_.empty(); });
    if (waiting_.empty() || free_.empty()) break;
    Run run = std::move(waiting_.front());
    waiting_.pop_front();
    Lane* lane = free_.back();
    free_.pop_back();
    --model_->free_lanes;
    lock.unlock();
    startRun(std::move(run), lane);
    lock.lock();
  }
  starts_ = false;
}

void Instance::startRun(Run run, Lane* lane) {
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

// A lane that a run has left: the next run that waits gets it.
void Instance::freeLane(Lane* lane) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (waiting_.empty() || starts_) {
    free_.push_back(lane);
    ++model_->free_lanes;
    lock.unlock();
    changed_.notify_all();
    return;
  }
  Run run = std::move(waiting_.front());
  waiting_.pop_front();
  lock.unlock();
  startRun(std::move(run), lane);
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
  freeLane(started.lane);
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
    if (--pending.pieces_left == 0) pending.answer({started.run.started_ns, ended}, &metrics_);
  }
}

}  // namespace padfree
