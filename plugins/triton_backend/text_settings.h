// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "triton_batching/json.h"

namespace padfree {

// What the configuration of a model says that makes token ids of texts: the parameters of the Python backend's model of
// the same tensors (runtime/triton/parameters.py).
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

// A configuration is of such a model where it names a tokenizer.
bool isOfTexts(const Json& config);

// Throws Failure where a parameter is unknown or missing, has a value that is not allowed, or where an output is none
// that such a model has.
TextSettings readTextSettings(const Json& config);

}  // namespace padfree
