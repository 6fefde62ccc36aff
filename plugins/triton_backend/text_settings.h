// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "triton_batching/json.h"

namespace padfree {

// The configuration of a model that turns texts into token ids. Its parameters are those of the Python backend's model
// with the same tensors (runtime/triton/parameters.py).
struct TextSettings {
  std::string tokenizer;
  int64_t max_length = 0;
  bool cuts_long_texts = true;
  int64_t max_text_bytes = 1 << 16;
  int64_t max_request_bytes = 1 << 20;
  int64_t vocabulary = 0;  // 0: not known
  bool keeps_end = false;
  bool has_types = true;
  std::u32string prompt;
  bool takes_pairs_alone = false;
  std::string ids = "input_ids", types = "token_type_ids", positions = "position_ids", prompt_length = "prompt_length";
};

// Whether a configuration is that of such a model: it names a tokenizer.
bool isOfTexts(const Json& config);

// Throws Failure if a parameter is unknown or missing or has a value that is not allowed, or if there is an output that
// such a model does not have.
TextSettings readTextSettings(const Json& config);

}  // namespace padfree
