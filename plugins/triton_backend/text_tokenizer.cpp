// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/text_tokenizer.h"

#include <stdexcept>
#include <utility>

#include "common/text.h"
#include "triton_backend/model.h"
#include "triton_batching/failure.h"

namespace padfree {
namespace {

Tokenizer openTokenizer(const std::string& path) {
  const std::string content =
      readFile(path, "write the repository again with padfree triton, which compiles the model's tokenizer");
  try {
    return Tokenizer(content);
  } catch (const std::invalid_argument& error) {
    throw Failure(path + ": damaged (" + error.what() + "); write the repository again with padfree triton");
  }
}

}  // namespace

TextTokenizer::TextTokenizer(const std::string& folder, TextSettings settings)
    : settings_(std::move(settings)), tokenizer_(openTokenizer(folder + "/" + settings_.tokenizer)) {
  if (settings_.vocabulary > 0 && tokenizer_.largestId() >= settings_.vocabulary) {
    throwFailure(folder, "/", settings_.tokenizer, ": has ids up to ", tokenizer_.largestId(), " ('",
                 tokenizer_.largestToken(), "'), 'padfree_vocabulary' is ", settings_.vocabulary,
                 ": it is another model's; copy the tokenizer that was written with the model");
  }
  if (settings_.prompt.empty()) return;
  const auto count =
      tokenizer_.encode(settings_.prompt, nullptr, {settings_.max_length, settings_.keeps_end}).ids.size();
  prompt_tokens_ = static_cast<int32_t>(count - (tokenizer_.tokensBehind() > 0 ? 1 : 0));  // without the final token
}

std::vector<EncodedText> TextTokenizer::encode(const TextRequest& request) const {
  std::vector<EncodedText> encoded;
  for (size_t at = 0; at < request.texts.size(); ++at) {
    const std::u32string* pair = request.pairs.empty() ? nullptr : &request.pairs[at];
    encoded.push_back(tokenizer_.encode(request.texts[at], pair, {settings_.max_length, settings_.keeps_end}));
    if (!encoded.back().isCut() || request.may_be_cut[at]) continue;
    throwFailure("text ", at, " has ", encoded.back().whole, " tokens, allowed: ", settings_.max_length,
                 "; send a shorter text, let it be cut ('truncate'), or serve with padfree_long_texts truncate");
  }
  return encoded;
}

}  // namespace padfree
