// SPDX-License-Identifier: Apache-2.0
// The tensors of requests for token ids, and of their answers.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "triton_backend/open_request.h"
#include "triton_backend/tensors.h"
#include "triton_backend/text_settings.h"

namespace padfree {

struct TextRequest {
  std::vector<std::u32string> texts;
  std::vector<std::u32string> pairs;  // the second texts; empty: there are no pairs
  std::vector<bool> may_be_cut;
  size_t bytes = 0;  // in all texts
};

// Reads and checks the texts of a request. Throws Failure, with a message for its caller.
TextRequest readTexts(const std::vector<Tensor>& tensors, const TextSettings& settings);

// How many bytes of texts there are, roughly.
size_t textBytes(const std::vector<Tensor>& tensors);

// The names of the wanted outputs that texts have.
std::vector<std::string> wantedTextOutputs(TRITONBACKEND_Request* request, const TextSettings& settings);

// What becomes of texts in one tensor: a row for each, whose end is filled with zeros.
struct TextRows {
  int64_t width;
  std::vector<int32_t> values;
};

// The rows of the tensor with this name, which is one of those of token ids, types, positions, the prompt's length, and
// the texts' lengths.
TextRows rowsOf(const std::string& name, const std::vector<EncodedText>& texts, const TextSettings& settings,
                int32_t prompt_tokens);

// Adds the wanted outputs to the request's response.
void writeTexts(OpenRequest& request, const std::vector<std::string>& wanted, const std::vector<EncodedText>& texts,
                const TextSettings& settings, int32_t prompt_tokens);

}  // namespace padfree
