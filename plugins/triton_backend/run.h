// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine_abi.h"
#include "triton_backend/metadata.h"
#include "triton_backend/pending.h"
#include "triton_batching/failure.h"

namespace padfree {

// Sequences first..last-1 of a request, which run together with those of other pieces.
struct Piece {
  std::shared_ptr<Pending> pending;
  size_t first, last;
  bool is_skipped = false;  // its request was cancelled or has failed
};

struct Run {
  std::vector<Piece> pieces;
  PadfreeSizes sizes{};
  std::optional<Failure> failure;  // why it did not start
  uint64_t started_ns = 0;
};

struct Budget {
  int64_t tokens, sequences;
};

// Divides the sequences of requests, in their order, into runs that are as large as the budget allows. They go to the
// last of `runs` as far as it has room, and to further ones.
void cut(const std::vector<std::shared_ptr<Pending>>& requests, const Budget& budget, std::deque<Run>& runs);

// Skips pieces of requests that were cancelled or have failed in the meantime. Returns false if nothing is left.
bool skipCancelled(Run& run);

// Puts a run on a lane: packs its pieces into the lane's memory and starts it.
void start(const Run& run, const Metadata& metadata, Lane& lane);

}  // namespace padfree
