// SPDX-License-Identifier: Apache-2.0
// The input `prefix` of operators: a number for every sequence, or a single one where no sequence has a prefix.
#pragma once

#include "common/text.h"
#include "shell/operator.h"

namespace padfree {

inline void checkPrefix(const Sizes& sizes, int64_t B) {
  const int64_t count = sizes.get("F");
  if (count < 0 || B < 0 || count == 1 || count == B) return;
  throwInvalid("input prefix has ", count, " numbers; allowed: ", B,
               ", one for every sequence, or 1 where no sequence has a prefix");
}

// Null where no sequence has one.
inline const int* prefixOf(const Tensors& tensors, int input, int B) {
  return B > 1 && tensors.size(input, 0) == B ? tensors.input<int>(input) : nullptr;
}

}  // namespace padfree
