// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "triton_batching/json.h"

namespace padfree {

// What a model's configuration says about batches.
struct Settings {
  std::string input;    // the input whose elements are the tokens
  uint64_t max_tokens;  // in a batch, over all its requests
  bool delays;          // a batch may wait for more requests before it is sent
};

// Reads the configuration (version 1, completed by the core). Throws Failure if it is not compatible with a token
// budget: the message says what to change.
Settings readSettings(const Json& config);

}  // namespace padfree
