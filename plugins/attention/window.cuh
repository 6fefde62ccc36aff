// SPDX-License-Identifier: Apache-2.0
// The keys that rows of a sequence see.
#pragma once

#include "attention/launch.h"

namespace padfree {

struct KeyRange {
  int begin, end;
};

// The keys that at least one of the rows [first, last] of a sequence sees; last < length. Sums stay below 2^31 for any
// window.
__host__ __device__ inline KeyRange visibleKeys(const AttentionParams& p, int first, int last, int length) {
  const bool all_left = p.window_left < 0 || p.window_left >= first;
  const bool all_right = p.window_right < 0 || p.window_right >= length - 1 - last;
  return {all_left ? 0 : first - p.window_left, all_right ? length : last + p.window_right + 1};
}

}  // namespace padfree
