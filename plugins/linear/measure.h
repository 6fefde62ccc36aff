// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "linear/choice.h"

namespace padfree {

// Measures on the current device which choices are fastest for min_tokens to max_tokens; `table` gets ascending ranges,
// the last of which ends at max_tokens. Allocates scratch memory and frees it, launches and synchronises: for the time
// when an engine is built. Of `shape`, T, x, weight and y are not looked at; the other tensors are measured with where
// they are not null.
cudaError_t measureLinear(const LinearParams& shape, int min_tokens, int max_tokens, std::vector<LinearRange>& table);

}  // namespace padfree
