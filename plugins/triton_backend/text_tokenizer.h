// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "triton_backend/text_settings.h"
#include "triton_backend/text_tensors.h"

namespace padfree {

// A compiled tokenizer in a version's folder, with the settings that go with it. May be shared between threads.
class TextTokenizer {
 public:
  // Throws Failure if the file is damaged, or another model's.
  TextTokenizer(const std::string& folder, TextSettings settings);

  const TextSettings& settings() const { return settings_; }
  int32_t promptTokens() const { return prompt_tokens_; }  // at the beginning of every text

  // Throws Failure if a text is too long and must not be cut.
  std::vector<EncodedText> encode(const TextRequest& request) const;

 private:
  const TextSettings settings_;
  const Tokenizer tokenizer_;
  int32_t prompt_tokens_ = 0;
};

}  // namespace padfree
