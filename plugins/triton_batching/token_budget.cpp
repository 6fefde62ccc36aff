// SPDX-License-Identifier: Apache-2.0
#include "triton_batching/token_budget.h"

#include <algorithm>
#include <utility>

#include "triton_batching/failure.h"

namespace padfree {
namespace {

bool isCancelled(TRITONBACKEND_Request* request) {
  bool is_cancelled = false;
  return succeeded(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled)) && is_cancelled;
}

}  // namespace

void TokenBudget::Requests::clear() {
  list.clear();
  tokens = 0;
}

void TokenBudget::take(const Requests& requests) {
  taken_tokens_ += requests.tokens;
  has_taken_ = has_taken_ || !requests.list.empty();
}

void TokenBudget::beginRound(const void* payload) {
  if (payload != payload_) {
    payload_ = payload;
    taken_tokens_ = 0;
    has_taken_ = false;
    last_round_.clear();
  } else if (delays_) {
    // A round that is still unsettled is dropped: the round after it asked about no request, so the clients of all
    // requests in the queue have gone.
    std::swap(last_round_, round_);
  } else {
    take(round_);
  }
  round_.clear();
}

void TokenBudget::settleLastRound(TRITONBACKEND_Request* next) {
  // All of them still exist: either this round found them in the queue, or they wait in the batch.
  const auto& list = last_round_.list;
  const bool comes_again = std::find(list.begin(), list.end(), next) != list.end();
  if (!comes_again && !std::all_of(list.begin(), list.end(), isCancelled)) take(last_round_);
  last_round_.clear();
}

bool TokenBudget::include(TRITONBACKEND_Request* request, uint64_t tokens) {
  if (!last_round_.list.empty()) settleLastRound(request);
  const uint64_t used_tokens = taken_tokens_ + round_.tokens;
  const bool is_empty = !has_taken_ && round_.list.empty();
  if (!is_empty && (used_tokens >= max_tokens_ || tokens > max_tokens_ - used_tokens)) return false;
  round_.list.push_back(request);
  round_.tokens += tokens;
  return true;
}

}  // namespace padfree
