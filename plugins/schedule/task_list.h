// SPDX-License-Identifier: Apache-2.0
// The size of the task list, for the shells of operators that write one.
#pragma once

#include <cstdint>
#include <limits>

#include "attention/task.h"
#include "common/text.h"
#include "shell/shape.h"

namespace padfree {

// Throws std::invalid_argument where a list for `num_heads` heads may have more entries than an int32 counts.
inline void checkTaskList(const Sizes& sizes, int num_heads) {
  const int64_t T = sizes.get("T"), B = sizes.get("B");
  if (T < 0 || B < 0) return;
  const int64_t entries = taskListEntries(T, B, num_heads);
  if (entries > std::numeric_limits<int32_t>::max()) {
    throwInvalid("the task list may have ", entries, " entries at T = ", T, ", B = ", B, " and num_heads = ", num_heads,
                 "; allowed: what an int32 can count; use smaller batches");
  }
}

// The length of the output tasks [L,4].
inline void deriveTaskList(SizeExpressions& sizes, int num_heads) {
  sizes.set("L", taskListEntries(sizes.at("T"), sizes.at("B"), num_heads).get());
}

}  // namespace padfree
