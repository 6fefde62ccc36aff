// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace padfree {

// Of a pair by an angle.
struct Rotation {
  float cosine, sine;
};

}  // namespace padfree
