// SPDX-License-Identifier: Apache-2.0
// Ways to cut a product up, as integers that an engine can keep, and how the fastest are found.
#pragma once

#include <vector>

#include "linear/launch.h"

namespace padfree {

// What it means is the kernel's affair. Engines hold such numbers: one that was ever written keeps its meaning.
using LinearChoice = int32_t;
constexpr LinearChoice kLinearAuto = 0;  // what launchLinear chooses by itself

bool isLinearChoice(LinearChoice choice);

// As launchLinear, cut up as chosen.
cudaError_t launchLinear(const LinearParams& params, LinearChoice choice, cudaStream_t stream);

// The choice for token counts up to `tokens`, and above those of the range before.
struct LinearRange {
  int32_t tokens;
  LinearChoice choice;
};

// Measures on the current device which choices are fastest for min_tokens to max_tokens; `table` gets ascending ranges,
// the last of which ends at max_tokens. Allocates scratch memory and frees it, launches and synchronises: for the time
// when an engine is built. Of `shape`, T, x, weight and y are not looked at; the other tensors are measured with where
// they are not null.
cudaError_t measureLinear(const LinearParams& shape, int min_tokens, int max_tokens, std::vector<LinearRange>& table);

}  // namespace padfree
