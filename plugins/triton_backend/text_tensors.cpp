// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/text_tensors.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "common/text.h"
#include "tokenizer/utf8.h"
#include "triton_batching/failure.h"

namespace padfree {
namespace {

std::string nameText(const std::string& name) {
  return "'" + name + "'";
}

// A tensor's values in host memory.
Column valuesOf(const Tensor& tensor) {
  return locate(tensor, /*to_host=*/true, [&](char*, const char*, int64_t) {
    throw Failure(nameText(tensor.name) + " is in GPU memory, allowed: memory of the host; send texts in that");
  });
}

// The strings of a tensor with these values, each of which follows its size.
std::vector<std::string_view> readStrings(const Tensor& tensor, const Column& column) {
  const std::string name = nameText(tensor.name);
  std::string_view values(column.data, tensor.bytes);
  if (tensor.shape.size() != 2 || tensor.shape[1] != 1 || tensor.shape[0] < 1) {
    throw Failure(name + " has shape " + toText(tensor.shape) + ", allowed: [texts, 1]; send one text per row");
  }
  if (tensor.type != TRITONSERVER_TYPE_BYTES) throw Failure(name + " has another type, allowed: BYTES; send strings");
  std::vector<std::string_view> strings;
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    uint32_t size = 0;
    const bool has_size = values.size() >= sizeof(size);
    if (has_size) std::memcpy(&size, values.data(), sizeof(size));
    if (!has_size || size > values.size() - sizeof(size)) {
      throw Failure(name + " has fewer texts than its shape says; send a size and that many bytes for each");
    }
    strings.push_back(values.substr(sizeof(size), size));
    values.remove_prefix(sizeof(size) + size);
  }
  if (!values.empty()) throw Failure(name + " has more bytes than its texts; send a size and that many bytes for each");
  return strings;
}

std::vector<std::u32string> decode(const std::vector<std::string_view>& strings, const std::string& name,
                                   const TextSettings& settings, const std::u32string& prompt) {
  size_t largest = 0;
  for (size_t at = 1; at < strings.size(); ++at) {
    if (strings[at].size() > strings[largest].size()) largest = at;
  }
  if (strings[largest].size() > static_cast<size_t>(settings.max_text_bytes)) {
    throwFailure(nameText(name), " ", largest, " has ", strings[largest].size(),
                 " bytes, allowed: ", settings.max_text_bytes,
                 "; send a shorter text, or serve with a larger padfree_max_text_bytes");
  }
  std::vector<std::u32string> texts;
  for (size_t at = 0; at < strings.size(); ++at) {
    texts.push_back(prompt);
    const size_t bad = decodeUtf8(strings[at], texts.back());
    if (bad == kAllRead) continue;
    throwFailure(nameText(name), " ", at, " is not UTF-8 (from byte ", bad, " on); encode texts as UTF-8");
  }
  return texts;
}

std::vector<bool> readFlags(const Tensor* tensor, size_t texts, const TextSettings& settings) {
  if (tensor == nullptr) return std::vector<bool>(texts, settings.cuts_long_texts);
  const std::vector<int64_t> wanted = {static_cast<int64_t>(texts), 1};
  if (tensor->shape != wanted || tensor->type != TRITONSERVER_TYPE_BOOL) {
    throw Failure(nameText(kTruncate) + " has shape " + toText(tensor->shape) + ", allowed: " + toText(wanted) +
                  " of BOOL; send one value for each text");
  }
  checkBytes(*tensor, 1);
  const Column values = valuesOf(*tensor);
  return std::vector<bool>(values.data, values.data + tensor->bytes);
}

// A row of int32 for every text, which `fill(text, row)` fills.
template <class Fill>
TextRows makeRows(const std::vector<EncodedText>& texts, size_t width, const Fill& fill) {
  TextRows rows{static_cast<int64_t>(width), std::vector<int32_t>(texts.size() * width)};
  for (size_t at = 0; at < texts.size(); ++at) fill(texts[at], rows.values.data() + at * width);
  return rows;
}

void writeFlags(OpenRequest& request, const std::vector<EncodedText>& texts) {
  const auto count = static_cast<int64_t>(texts.size());
  char* target = request.addHostOutput(kTruncated, TRITONSERVER_TYPE_BOOL, {count, 1}, count);
  for (const EncodedText& text : texts) *target++ = text.isCut() ? 1 : 0;
}

}  // namespace

std::vector<std::string> wantedTextOutputs(TRITONBACKEND_Request* request, const TextSettings& settings) {
  std::vector<std::string> wanted;
  for (const std::string& name : wantedNames(request)) {
    if (isTextOutput(name, settings)) wanted.push_back(name);
  }
  return wanted;
}

size_t textBytes(const std::vector<Tensor>& tensors) {
  size_t bytes = 0;
  for (const char* name : {kText, kTextPair}) {
    if (const Tensor* tensor = find(tensors, name)) bytes += tensor->bytes;
  }
  return bytes;
}

TextRequest readTexts(const std::vector<Tensor>& tensors, const TextSettings& settings) {
  const Tensor *first = find(tensors, kText), *pair = find(tensors, kTextPair);
  if (first == nullptr) {
    throw Failure("'text' is missing; send one text per row, and 'text_pair' only beside it");
  }
  if (settings.takes_pairs_alone && pair == nullptr) {
    throw Failure("'text_pair' is missing, and the model scores pairs; send a second text for each text");
  }
  const Column values = valuesOf(*first), pair_values = pair == nullptr ? Column{} : valuesOf(*pair);
  const auto strings = readStrings(*first, values);
  const auto pair_strings = pair == nullptr ? std::vector<std::string_view>{} : readStrings(*pair, pair_values);
  if (pair != nullptr && pair_strings.size() != strings.size()) {
    throwFailure("'text_pair' has ", pair_strings.size(), " texts, 'text' has ", strings.size(),
                 "; send one second text for each text");
  }
  TextRequest read;
  for (const auto* column : {&strings, &pair_strings}) {
    for (const std::string_view string : *column) read.bytes += string.size();
  }
  if (read.bytes > static_cast<size_t>(settings.max_request_bytes)) {
    throwFailure("the request has ", read.bytes, " bytes of text, allowed: ", settings.max_request_bytes,
                 "; send fewer texts per request, or serve with a larger padfree_max_request_bytes");
  }
  read.texts = decode(strings, kText, settings, settings.prompt);
  if (pair != nullptr) read.pairs = decode(pair_strings, kTextPair, settings, {});
  read.may_be_cut = readFlags(find(tensors, kTruncate), strings.size(), settings);
  return read;
}

TextRows rowsOf(const std::string& name, const std::vector<EncodedText>& texts, const TextSettings& settings,
                int32_t prompt_tokens) {
  size_t width = 0;
  for (const EncodedText& text : texts) width = std::max(width, text.ids.size());
  if (name == settings.ids) {
    return makeRows(texts, width,
                    [](const EncodedText& text, int32_t* row) { std::copy(text.ids.begin(), text.ids.end(), row); });
  }
  if (name == settings.types) {
    return makeRows(texts, width, [&](const EncodedText& text, int32_t* row) {
      if (settings.has_types) std::copy(text.types.begin(), text.types.end(), row);
    });
  }
  if (name == settings.positions) {
    return makeRows(texts, width, [](const EncodedText& text, int32_t* row) {
      for (size_t at = 0; at < text.ids.size(); ++at) row[at] = static_cast<int32_t>(at);
    });
  }
  if (name == settings.prompt_length) {
    return makeRows(texts, 1, [&](const EncodedText&, int32_t* row) { *row = prompt_tokens; });
  }
  return makeRows(texts, 1,
                  [](const EncodedText& text, int32_t* row) { *row = static_cast<int32_t>(text.ids.size()); });
}

void writeTexts(OpenRequest& request, const std::vector<std::string>& wanted, const std::vector<EncodedText>& texts,
                const TextSettings& settings, int32_t prompt_tokens) {
  for (const std::string& name : wanted) {
    if (name == kTruncated) {
      writeFlags(request, texts);
      continue;
    }
    const TextRows rows = rowsOf(name, texts, settings, prompt_tokens);
    const auto bytes = rows.values.size() * sizeof(int32_t);
    const std::vector<int64_t> shape = {static_cast<int64_t>(texts.size()), rows.width};
    const auto target = request.addHostOutput(name, TRITONSERVER_TYPE_INT32, shape, static_cast<int64_t>(bytes));
    if (bytes > 0) std::memcpy(target, rows.values.data(), bytes);
  }
}

}  // namespace padfree
