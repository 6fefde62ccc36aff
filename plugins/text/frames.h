// SPDX-License-Identifier: Apache-2.0
// Ids of whole requests: texts, or pairs of texts, with what stands around them.
#pragma once

#include "text/word_table.h"

namespace padfree {

// Texts one after the other, a byte between two of them, and what becomes of them.
struct Request {
  const char* bytes;
  const int64_t* sizes;  // [rows * segments]; negative: not to be looked at
  int32_t rows;
  int32_t segments;            // 1: texts, 2: pairs
  const int32_t* frame;        // the ids before, between and after, one after the other
  const int32_t* frame_sizes;  // [segments + 1]
  int32_t max_tokens;          // of a row, those of the frame included; negative: any number
  // Results. `ids` and `types` take `capacity` numbers; `types` may be null. counts [rows]: tokens, or a TextState.
  int32_t* ids;
  int32_t* types;
  int64_t capacity;
  int32_t* counts;
};

// Returns the number of ids written, which are those of the rows with a count, in their order; what does not fit into
// `capacity` is negative: -1 times what would.
int64_t lookUpRows(const WordTable& table, const Request& request);

}  // namespace padfree
