// SPDX-License-Identifier: Apache-2.0
// Tilings as integers that an engine can keep.
#pragma once

#include "linear/launch.h"

namespace padfree {

// linear/tiling.h says what it means. Engines hold such numbers: one that was ever written keeps its meaning.
using LinearChoice = int32_t;
constexpr LinearChoice kLinearAuto = 0;  // the tiling that launchLinear takes by itself

bool isLinearChoice(LinearChoice choice);

// What of the current device decides which kernels run and how a GEMM is divided.
struct LinearDevice {
  int multiprocessors, shared_bytes;  // of each
  bool is_hopper;                     // and the library has Hopper's kernels
};
cudaError_t linearDevice(LinearDevice& device);

// As launchLinear, with the tiling chosen.
cudaError_t launchLinear(const LinearParams& params, LinearChoice choice, cudaStream_t stream);

// The choice for token counts up to `tokens`, and above those of the range before.
struct LinearRange {
  int32_t tokens;
  LinearChoice choice;
};

}  // namespace padfree
