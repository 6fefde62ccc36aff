// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "common/text.h"
#include "triton_batching/failure.h"

namespace padfree {
namespace {

// Buffers of callers need not be aligned: a shared memory region may begin anywhere.
template <class Number>
Number load(const char* values, int64_t index) {
  Number number;
  std::memcpy(&number, values + index * static_cast<int64_t>(sizeof(Number)), sizeof(Number));
  return number;
}

std::string where(const Input& input, int64_t sequence, int64_t index) {
  if (input.role != Input::Role::kTokens) return text(" at sequence ", sequence);
  int64_t numbers = 1;
  for (const int64_t size : input.trailing) numbers *= size;
  return text(" at sequence ", sequence, ", position ", index / numbers);
}

// Whether all values are in 0..limit-1: taken as unsigned, negative ones are the largest. It has no branches, so that
// it is vectorised.
bool areBelow(const char* values, int64_t count, uint32_t limit) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, load<uint32_t>(values, i));
  return largest < limit;
}

void checkIntegers(const Input& input, const char* values, int64_t count, int64_t sequence) {
  const bool is_of_tokens = input.role == Input::Role::kTokens;
  if (input.limit > 0 || is_of_tokens) {
    constexpr int64_t kAll = int64_t{INT32_MAX} + 1;
    const auto limit = static_cast<uint32_t>(input.limit > 0 ? std::min(input.limit, kAll) : kAll);
    if (!areBelow(values, count, limit)) {
      int64_t at = 0;
      while (load<uint32_t>(values, at) < limit) ++at;
      throwFailure("'", input.name, "' value ", load<int32_t>(values, at), where(input, sequence, at), ": allowed 0..",
                   limit - 1,
                   (is_of_tokens ? "; tokenise with the tokenizer that belongs to this model"
                                 : "; pass a value that the model has"));
    }
  }
  for (const int32_t excluded : input.excluded) {
    for (int64_t at = 0; at < count; ++at) {
      if (load<int32_t>(values, at) != excluded) continue;
      throwFailure("'", input.name, "' value ", excluded, where(input, sequence, at),
                   ": it stands for padding, and the model counts no position for it; leave padding out of the "
                   "sequences, or rewrite the model with --interface padded");
    }
  }
}

void checkFloats(const Input& input, const char* values, int64_t count, int64_t sequence) {
  for (int64_t at = 0; at < count; ++at) {
    const auto value = load<float>(values, at);
    if (std::isfinite(value)) continue;
    throwFailure("'", input.name, "' value ", value, where(input, sequence, at),
                 ": allowed: finite numbers; correct what makes them");
  }
}

}  // namespace

void checkLengths(const std::vector<int32_t>& seq_lens, const Metadata& metadata) {
  const auto longest = std::max_element(seq_lens.begin(), seq_lens.end());
  if (*longest <= metadata.longest) return;
  const std::string found = text("sequence ", longest - seq_lens.begin(), " has ", *longest, " tokens, the ");
  if (metadata.max_positions > 0 && *longest > metadata.max_positions) {
    throwFailure(found, "model has ", metadata.max_positions, " positions; truncate it to ", metadata.max_positions,
                 " tokens or split it");
  }
  throwFailure(found, "engine's profile takes ", metadata.longest,
               "; truncate it, or build the engine with --max-seq-len ", *longest);
}

void checkValues(const Input& input, const char* values, const std::vector<int32_t>& seq_lens, int64_t width) {
  const bool is_of_tokens = input.role == Input::Role::kTokens;
  const int64_t numbers = input.row_bytes / infoOf(input.type).bytes;
  const int64_t stride = is_of_tokens ? width * input.row_bytes : input.row_bytes;
  for (size_t sequence = 0; sequence < seq_lens.size(); ++sequence) {
    const char* row = values + static_cast<int64_t>(sequence) * stride;
    const int64_t count = is_of_tokens ? numbers * seq_lens[sequence] : numbers;
    if (input.type == kPadfreeFloat32) {
      checkFloats(input, row, count, static_cast<int64_t>(sequence));
    } else {
      checkIntegers(input, row, count, static_cast<int64_t>(sequence));
    }
  }
}

}  // namespace padfree
