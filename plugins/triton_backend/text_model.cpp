// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/text_model.h"

#include <algorithm>
#include <utility>

#include "triton_backend/clock.h"

namespace padfree {

TextModel::TextModel(std::shared_ptr<const Backend> backend, const std::string& folder, std::string version,
                     const Json& config)
    : backend_(std::move(backend)),
      name_(config["name"].text()),
      version_(std::move(version)),
      tokenizer_(folder, readTextSettings(config)) {}

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
      const TextSettings& settings = model_->tokenizer().settings();
      waiting.push_back({request.get(), readTexts(tensorsOf(request->handle()), settings),
                         wantedTextOutputs(request->handle(), settings)});
      texts += waiting.back().texts.texts.size();
    });
    if (!failure) continue;
    request->fail(*failure);
    request->answer({}, &metrics_);
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
    const TextTokenizer& tokenizer = model_->tokenizer();
    const std::vector<EncodedText> texts = tokenizer.encode(waiting.texts);
    waiting.request->openResponse();
    writeTexts(*waiting.request, waiting.wanted, texts, tokenizer.settings(), tokenizer.promptTokens());
    const auto cut = std::count_if(texts.begin(), texts.end(), [](const EncodedText& text) { return text.isCut(); });
    if (cut > 0) metrics_.add(Counter::kTruncatedTexts, static_cast<double>(cut));
  });
  if (failure) waiting.request->fail(*failure);
  waiting.request->answer({started, nowNs()}, &metrics_);
}

}  // namespace padfree
