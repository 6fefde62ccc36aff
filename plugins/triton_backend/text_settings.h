// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "triton_batching/json.h"

namespace padfree {

constexpr const char* kSeqLens = "seq_lens";  // the tensor that tells how long sequences are
constexpr const char* kText = "text";
constexpr const char* kTextPair = "text_pair";
constexpr const char* kTruncate = "truncate";
constexpr const char* kTruncated = "truncated";

// How a model turns texts into token ids. Its parameters are those of the Python backend's model that does
// (runtime/triton/parameters.py).
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

// The names of the parameters, for messages.
extern const char* const kTextParameters;

// Whether a configuration has texts turned into token ids: it names a tokenizer.
bool takesTexts(const Json& config);

// Reads a parameter. Returns false if it is none of these; throws Failure if its value is not allowed.
bool readTextParameter(const std::string& name, const std::string& value, TextSettings& settings);
// To be called when all have been read: throws Failure if one is missing.
void checkTextSettings(const TextSettings& settings);

// The settings of a model of texts alone. Throws Failure if a parameter is unknown or missing or has a value that is
// not allowed, or if there is an output that such a model does not have.
TextSettings readTextSettings(const Json& config);

// The tensors that such a model gives.
std::vector<std::string> textOutputs(const TextSettings& settings);
bool isTextOutput(const std::string& name, const TextSettings& settings);

}  // namespace padfree
