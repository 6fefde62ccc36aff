// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "triton_batching/json.h"

namespace padfree {

// What a model's configuration says about its batches.
struct Settings {
  std::string input;    // its elements are the tokens
  uint64_t max_tokens;  // of a batch, over all its requests
  bool delays;          // a batch may wait for more requests before it is sent
};

// Reads the configuration (version 1, completed by the core). Throws std::invalid_argument where it does not go with a
// token budget: the message says what to change.
Settings readSettings(const Json& config);

}  // namespace padfree
