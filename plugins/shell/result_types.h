// SPDX-License-Identifier: Apache-2.0
// What operators have in common whose results may leave in other types than the activations'.
#pragma once

#include <string>
#include <vector>

#include "shell/fields.h"

namespace padfree {

constexpr int kMinE4m3Version = 89;  // compute capability, without the point
constexpr const char* kE4m3RowsNextStep =
    "; keep the linear layers that read these rows in fp16 (--keep), or build with --precision fp16";

// The attributes results and y_scale of an operator whose rows leave in the activations' type, in e4m3, or in both;
// and, of some operators, in fp32, with or without the activations' type.
struct Results {
  explicit Results(const Attributes& attributes) : Results(attributes.choice("results"), attributes.real("y_scale")) {}

  bool activations, e4m3, fp32;
  float y_scale;

 private:
  Results(const std::string& types, float y_scale);
};

// Compute capability of the current GPU, without the point. Throws std::invalid_argument, naming the GPU, where it is
// below `least`; next_step begins with a semicolon.
int checkCapability(int minimum, const char* next_step);

}  // namespace padfree
