// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/engine_abi.h"

namespace padfree::engine {

// The sizes that CUDA graphs are captured for: those of runtime/gpu/buckets.py.
constexpr int64_t kStepsAnOctave = 32;
constexpr int64_t kLeastStep = 16;  // tokens

// The smallest power of two that is not below `count`.
inline int64_t octave(int64_t count) {
  int64_t power = 1;
  while (power < count) power *= 2;
  return power;
}

// Rounds up by less than 1/32 or less than `least_step`, to at most `most`.
inline int64_t bucket(int64_t size, int64_t least_step, int64_t most) {
  const int64_t step = std::max(least_step, octave(size) / (2 * kStepsAnOctave));
  return std::min(std::max<int64_t>(1, (size + step - 1) / step) * step, most);
}

inline int64_t tokenBucket(int64_t tokens, int64_t most) {
  return bucket(tokens, kLeastStep, most);
}

// Slots of a padded axis, where filler costs: sizes up to 64 stay as they are.
inline int64_t slotBucket(int64_t slots, int64_t most) {
  return bucket(slots, 1, most);
}

// Rounds up to a power of two, or to `most`: empty sequences cost next to nothing.
inline int64_t sequenceBucket(int64_t sequences, int64_t most) {
  return std::min(octave(sequences), most);
}

// Filler tokens that cost less than a run without a graph, for which TensorRT needs milliseconds: those of a larger
// graph, if there is none of these sizes.
inline int64_t largestFiller(int64_t tokens) {
  return 128 + tokens / 16;
}

inline int64_t rowsOf(const PadfreeSizes& sizes, PadfreeRows rows) {
  return rows == kPadfreeTokens      ? sizes.tokens
         : rows == kPadfreeSequences ? sizes.sequences
         : rows == kPadfreeSlots     ? sizes.slots
                                     : 1;
}

}  // namespace padfree::engine
