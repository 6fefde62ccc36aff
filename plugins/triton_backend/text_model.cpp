// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/text_model.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "triton_backend/clock.h"

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

TextModel::TextModel(std::shared_ptr<const Backend> backend, const std::string& folder, std::string version,
                     const Json& config)
    : backend_(std::move(backend)),
      name_(config["name"].text()),
      version_(std::move(version)),
      settings_(readTextSettings(config)),
      tokenizer_(openTokenizer(folder + "/" + settings_.tokenizer)) {
  if (settings_.vocabulary > 0 && tokenizer_.largestId() >= settings_.vocabulary) {
    throw Failure(folder + "/" + settings_.tokenizer + ": has ids up to " + std::to_string(tokenizer_.largestId()) +
                  " ('" + tokenizer_.largestToken() + "'), 'padfree_vocabulary' is " +
                  std::to_string(settings_.vocabulary) +
                  ": it is another model's; copy the tokenizer that was written with the model");
  }
  if (settings_.prompt.empty()) return;
  const auto count =
      tokenizer_.encode(settings_.prompt, nullptr, {settings_.max_length, settings_.keeps_end}).ids.size();
  prompt_tokens_ = static_cast<int32_t>(count - (tokenizer_.tokensBehind() > 0 ? 1 : 0));  // without the final token
}

std::vector<EncodedText> TextModel::encode(const TextRequest& request) const {
  std::vector<EncodedText> encoded;
  for (size_t at = 0; at < request.texts.size(); ++at) {
    const std::u32string* pair = request.pairs.empty() ? nullptr : &request.pairs[at];
    encoded.push_back(tokenizer_.encode(request.texts[at], pair, {settings_.max_length, settings_.keeps_end}));
    if (!encoded.back().isCut() || request.may_be_cut[at]) continue;
    throw Failure("text " + std::to_string(at) + " has " + std::to_string(encoded.back().whole) +
                  " tokens, allowed: " + std::to_string(settings_.max_length) +
                  "; send a shorter text, let it be cut ('truncate'), or serve with padfree_long_texts truncate");
  }
  return encoded;
}

TextInstance::TextInstance(std::shared_ptr<TextModel> model, TRITONBACKEND_ModelInstance* handle)
    : model_(std::move(model)),
      handle_(handle),
      metrics_(model_->backend().families, model_->name(), model_->version(), handle, {Counter::kTruncatedTexts}) {}

void TextInstance::execute(TRITONBACKEND_Request** requests, uint32_t count) {
  const uint64_t called = nowNs();
  std::vector<std::unique_ptr<OpenRequest>> all;
  all.reserve(count);
  for (uint32_t i = 0; i < count; ++i) all.push_back(std::make_unique<OpenRequest>(handle_, requests[i], called));
  std::vector<Waiting> waiting;
  uint64_t texts = 0;
  for (const auto& request : all) {
    const auto failure = attempt([&] {
      if (request->isCancelled()) throw cancelled();
      waiting.push_back({request.get(), readTexts(request->handle(), model_->settings())});
      texts += waiting.back().texts.texts.size();
    });
    if (!failure) continue;
    request->fail(*failure);
    answer(*request, {});
  }
  // Large ones last, so that the others do not wait for them.
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const Waiting& one, const Waiting& other) { return one.texts.bytes < other.texts.bytes; });
  for (const Waiting& one : waiting) serve(one);
  if (waiting.empty()) return;
  const uint64_t ended = nowNs();
  succeeded(TRITONBACKEND_ModelInstanceReportBatchStatistics(handle_, texts, called, called, ended, ended));
}

void TextInstance::serve(const Waiting& waiting) const {
  const uint64_t started = nowNs();
  const auto failure = attempt([&] {
    const std::vector<EncodedText> texts = model_->encode(waiting.texts);
    waiting.request->openResponse();
    writeTexts(*waiting.request, waiting.texts.wanted, texts, model_->settings(), model_->promptTokens());
    const auto cut = std::count_if(texts.begin(), texts.end(), [](const EncodedText& text) { return text.isCut(); });
    if (cut > 0) metrics_.add(Counter::kTruncatedTexts, static_cast<double>(cut));
  });
  if (failure) waiting.request->fail(*failure);
  answer(*waiting.request, {started, nowNs()});
}

void TextInstance::answer(OpenRequest& request, const Times& times) const {
  if (const auto& failure = request.failure()) metrics_.count(*failure);
  request.answer(times);
}

}  // namespace padfree
