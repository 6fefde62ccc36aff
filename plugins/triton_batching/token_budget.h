// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "triton_batching/triton_abi.h"

namespace padfree {

// Says which requests may join the batch that Triton's core is forming.
//
// The core forms a batch in rounds (DynamicBatchScheduler::GetDynamicBatch, core/src/dynamic_batch_scheduler.cc). A
// round begins with ModelBatchInitialize and asks about the queue's requests, first to last, until one is refused; then
// the core either takes the round's requests out of the queue into the batch (the "payload"), or leaves them there,
// until the queue delay is over, and asks about them again. A batch that no instance has started grows by further
// rounds. The core reports neither which of the two it did, nor what a batch holds already; both are worked out here:
// - the address that ModelBatchInitialize is given lies in the payload, and a payload is never followed by itself;
// - without a queue delay, every round is taken;
// - with one, a round was left if one of its requests comes again, and taken if none does and its clients still wait.
// Only the scheduler's thread calls this. Nothing is allocated per batch: the core does not always finalize batches.
class TokenBudget {
 public:
  TokenBudget(uint64_t max_tokens, bool delays) : max_tokens_(max_tokens), delays_(delays) {}

  // A round begins. payload: any address that stands for the payload.
  void beginRound(const void* payload);

  // Whether the queue's next request joins the batch. A request above the budget gets a batch of its own, where the
  // engine answers with its error: refusing it would block the queue forever.
  bool include(TRITONBACKEND_Request* request, uint64_t tokens);

 private:
  struct Requests {
    std::vector<TRITONBACKEND_Request*> list;
    uint64_t tokens = 0;

    void clear();
  };

  void take(const Requests& requests);
  // Decides whether the last round's requests were taken, now that the next request in the queue is known.
  void settleLastRound(TRITONBACKEND_Request* next);

  const uint64_t max_tokens_;
  const bool delays_;
  const void* payload_ = nullptr;
  uint64_t taken_tokens_ = 0;
  bool has_taken_ = false;
  Requests last_round_;  // it is not known yet whether these were taken
  Requests round_;
};

}  // namespace padfree
