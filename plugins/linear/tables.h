// SPDX-License-Identifier: Apache-2.0
// Tables of choices that this process has measured, or was given from an earlier build: each GEMM is
// measured once.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "linear/choice.h"

namespace padfree {

// What a table depends on beside the device: K, N, activation, whether there are bias, residual, moments of x, of the
// residual and of y, whether it is gated, how many features are rotated and which heads are
// normed, the types, and the fewest and most tokens. (An
// RMS norm takes as long as a layer norm.)
using LinearTableKey = std::array<int32_t, 13>;
using LinearTable = std::vector<LinearRange>;

LinearTableKey tableKeyOf(const LinearParams& params, int min_tokens, int max_tokens);

// The first range that does not ascend or whose choice the kernel does not know; null where there is none.
const LinearRange* findUnknown(const LinearTable& table);

class LinearTables {
 public:
  // The table of a key; `measure` makes it where it is not known, one table at a time.
  LinearTable get(int device, const LinearTableKey& key, const std::function<LinearTable()>& measure);

  // The tables of a device, one per line: the key's numbers, then tokens and choice of every range.
  std::string text(int device);

  // Adds tables that text() has written, all of them or, where the text is anything else, none. What is known stays.
  bool take(int device, const std::string& text);

 private:
  std::mutex mutex_;
  std::map<std::pair<int, LinearTableKey>, LinearTable> tables_;
};

// The process's.
LinearTables& linearTables();

}  // namespace padfree
