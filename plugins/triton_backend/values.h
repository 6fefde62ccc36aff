// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "triton_backend/metadata.h"

namespace padfree {

// Throws Failure if a sequence is longer than the model or the engine takes.
void checkLengths(const std::vector<int32_t>& seq_lens, const Metadata& metadata);

// Throws Failure if a value is out of the model's range, not finite, or one that stands for padding. values: rows of
// `width` tokens, of which the first seq_lens[i] count, or one row per sequence.
void checkValues(const Input& input, const char* values, const std::vector<int32_t>& seq_lens, int64_t width);

}  // namespace padfree
