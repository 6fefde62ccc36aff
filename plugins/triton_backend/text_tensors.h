// SPDX-License-Identifier: Apache-2.0
// The tensors of requests for token ids, and of their answers.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "triton_backend/open_request.h"
#include "triton_backend/text_settings.h"

namespace padfree {

struct TextRequest {
  std::vector<std::u32string> texts;
  std::vector<std::u32string> pairs;  // the second texts; empty: there are no pairs
  std::vector<bool> may_be_cut;
  std::vector<std::string> wanted;  // names of outputs
  size_t bytes = 0;                 // in all texts
};

// Reads and checks a request. Throws Failure, with a message for its caller.
TextRequest readTexts(TRITONBACKEND_Request* request, const TextSettings& settings);

bool isTextOutput(const std::string& name, const TextSettings& settings);
std::string textOutputs(const TextSettings& settings);  // for messages

// Adds the wanted outputs to the request's response.
void writeTexts(OpenRequest& request, const std::vector<std::string>& wanted, const std::vector<EncodedText>& texts,
                const TextSettings& settings, int32_t prompt_tokens);

}  // namespace padfree
