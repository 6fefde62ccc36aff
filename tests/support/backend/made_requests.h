// SPDX-License-Identifier: Apache-2.0
// Requests of random sizes, in random pieces, in host or "device" memory, of which some are hostile.
#pragma once

#include <random>

#include "backend/core.h"

namespace made {

using Random = std::mt19937;

extern std::atomic<int> right, refused, cancelled, failed;  // answers

// For sequences of token ids.
std::unique_ptr<core::Request> ofTokens(Random& random);
// For texts.
std::unique_ptr<core::Request> ofTexts(Random& random);

// Adds values to a tensor, whose pieces may end anywhere, also within a number.
void append(core::Tensor& tensor, const char* bytes, uint64_t size, bool on_device, Random& random);
// Counts an answer to a good request; ends the process where it is wrong.
void count(const core::Request& request, const core::Answer& answer, bool is_right);

// Shapes that no request may have.
std::vector<int64_t> hostileShape(Random& random);

}  // namespace made
