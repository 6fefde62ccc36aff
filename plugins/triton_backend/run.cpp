// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/run.h"

#include <algorithm>
#include <cstring>

namespace padfree {
namespace {

// Where an input of the run is filled next, in host memory; values on a device are copied by the lane instead.
struct Target {
  Lane& lane;
  size_t input;
  char* memory;
  int64_t offset;

  void append(const Column& column, int64_t at, int64_t bytes) {
    if (column.data == nullptr) {
      std::memset(memory + offset, 0, bytes);
    } else if (column.on_device) {
      lane.copyIn(input, offset, column.data + at, bytes);
    } else {
      std::memcpy(memory + offset, column.data + at, bytes);
    }
    offset += bytes;
  }
};

void packTokens(const Piece& piece, const Input& input, Target& target) {
  const RequestData& data = piece.pending->data;
  const Column& column = data.columns[target.input];
  const int64_t stride = data.width * input.row_bytes;
  for (size_t i = piece.first; i < piece.last; ++i) {
    target.append(column, static_cast<int64_t>(i) * stride, data.seq_lens[i] * input.row_bytes);
  }
}

void packSequences(const Piece& piece, const Input& input, Target& target) {
  const auto count = static_cast<int64_t>(piece.last - piece.first);
  target.append(piece.pending->data.columns[target.input], static_cast<int64_t>(piece.first) * input.row_bytes,
                count * input.row_bytes);
}

void packSeqLens(const Piece& piece, Target& target) {
  const auto bytes = (piece.last - piece.first) * sizeof(int32_t);
  std::memcpy(target.memory + target.offset, piece.pending->data.seq_lens.data() + piece.first, bytes);
  target.offset += static_cast<int64_t>(bytes);
}

void packInput(const Run& run, const Input& input, Target target) {
  switch (input.role) {
    case Input::Role::kTokens:
      for (const Piece& piece : run.pieces)
        if (!piece.is_skipped) packTokens(piece, input, target);
      break;
    case Input::Role::kPerSequence:
      for (const Piece& piece : run.pieces)
        if (!piece.is_skipped) packSequences(piece, input, target);
      break;
    case Input::Role::kSeqLens:
      for (const Piece& piece : run.pieces)
        if (!piece.is_skipped) packSeqLens(piece, target);
      break;
    case Input::Role::kMaxSeqLen:
      std::memset(target.memory, 0, run.sizes.slots * input.row_bytes);
      break;
    case Input::Role::kPrefix:
      *reinterpret_cast<int32_t*>(target.memory) = -1;  // no sequence continues another
      break;
    case Input::Role::kUnread:
      std::memset(target.memory, 0, run.sizes.tokens * input.row_bytes);
      break;
  }
}

}  // namespace

void cut(const std::vector<std::shared_ptr<Pending>>& requests, const Budget& budget, std::deque<Run>& runs) {
  for (const auto& pending : requests) {
    const std::vector<int32_t>& seq_lens = pending->data.seq_lens;
    bool is_new_piece = true;
    for (size_t i = 0; i < seq_lens.size(); ++i) {
      const bool fits = !runs.empty() && runs.back().sizes.tokens + seq_lens[i] <= budget.tokens &&
                        runs.back().sizes.sequences < budget.sequences;
      if (!fits) runs.emplace_back();
      Run& run = runs.back();
      if (!fits || is_new_piece) {
        run.pieces.push_back({pending, i, i, false});
        ++pending->pieces_left;
      }
      is_new_piece = false;
      run.pieces.back().last = i + 1;
      run.sizes.tokens += seq_lens[i];
      run.sizes.sequences += 1;
      run.sizes.slots = std::max<int64_t>(run.sizes.slots, seq_lens[i]);
    }
  }
}

bool skipCancelled(Run& run) {
  for (Piece& piece : run.pieces) {
    if (!piece.pending->hasFailed() && !piece.pending->isCancelled()) continue;
    piece.is_skipped = true;
    for (size_t i = piece.first; i < piece.last; ++i) run.sizes.tokens -= piece.pending->data.seq_lens[i];
    run.sizes.sequences -= static_cast<int64_t>(piece.last - piece.first);
  }
  return run.sizes.sequences > 0;
}

void start(const Run& run, const Metadata& metadata, Lane& lane) {
  std::vector<void*> inputs(metadata.inputs.size());
  lane.arrange(run.sizes, inputs.data());
  for (size_t i = 0; i < inputs.size(); ++i) {
    packInput(run, metadata.inputs[i], {lane, i, static_cast<char*>(inputs[i]), 0});
  }
  const auto to_host = std::make_unique<bool[]>(metadata.outputs.size());
  for (const Piece& piece : run.pieces) {
    if (piece.is_skipped) continue;
    const RequestData& data = piece.pending->data;
    for (size_t i = 0; i < data.wanted.size(); ++i) {
      if (!data.on_device[i]) to_host[data.wanted[i]] = true;
    }
  }
  lane.start(to_host.get());
}

}  // namespace padfree
