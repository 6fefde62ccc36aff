// SPDX-License-Identifier: Apache-2.0
// Requests of random sizes, in random pieces, in host or "device" memory, of which some are hostile.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "backend/core.h"

namespace made {

using Random = std::mt19937;

extern std::atomic<int> right, refused, cancelled, failed;  // answers

// For sequences of token ids, which a plan takes.
std::unique_ptr<core::Request> ofTokens(Random& random);
// For token ids of texts.
std::unique_ptr<core::Request> ofTexts(Random& random);
// For either, from a plan with a tokenizer.
std::unique_ptr<core::Request> ofTokensOrTexts(Random& random);

// Sequences, and what the stand-in of an engine should say to them, as fake_engine.cpp describes it.
struct Sequences {
  int64_t width = 1;
  std::vector<std::vector<int32_t>> ids, types;

  void add(std::vector<int32_t> row, std::vector<int32_t> row_types);
  // Whether the outputs "pooled" and "hidden" are right, as far as they are there.
  bool areRight(const core::Answer& answer) const;

 private:
  int64_t token(size_t b, size_t p) const { return ids[b][p] + 2 * types[b][p]; }
  bool arePooled(const float* values) const;
  bool areHidden(const float* values) const;
};

// Adds values to a tensor, whose pieces may end anywhere, also within a number.
void append(core::Tensor& tensor, const char* bytes, uint64_t size, bool on_device, Random& random);
// Counts an answer to a good request; ends the process where it is wrong.
void count(const core::Request& request, const core::Answer& answer, bool is_right);

// Shapes that no request may have.
std::vector<int64_t> hostileShape(Random& random);

}  // namespace made
