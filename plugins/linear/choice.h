// SPDX-License-Identifier: Apache-2.0
// Tilings as integers that an engine can keep.
#pragma once

#include "linear/launch.h"

namespace padfree {

// linear/tiling.h says what it means. Engines hold such numbers: one that was ever written keeps its meaning.
using LinearChoice = int32_t;
constexpr LinearChoice kLinearAuto = 0;  // the tiling that launchLinear takes by itself

bool isLinearChoice(LinearChoice choice);

// As launchLinear, with the tiling chosen.
cudaError_t launchLinear(const LinearParams& params, LinearChoice choice, cudaStream_t stream);

// The choice for token counts up to `tokens`, and above those of the range before.
struct LinearRange {
  int32_t tokens;
  LinearChoice choice;
};

}  // namespace padfree
