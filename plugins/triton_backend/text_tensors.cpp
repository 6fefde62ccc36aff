// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/text_tensors.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "tokenizer/utf8.h"
#include "triton_backend/failure.h"
#include "triton_backend/model_settings.h"
#include "triton_backend/tensors.h"

namespace padfree {
namespace {

constexpr const char* kText = "text";
constexpr const char* kTextPair = "text_pair";
constexpr const char* kTruncate = "truncate";
constexpr const char* kTruncated = "truncated";

std::string nameText(const std::string& name) {
  return "'" + name + "'";
}

// A tensor's values in host memory: the server's buffer, or a copy of its pieces.
struct Values {
  std::string_view view;
  std::vector<char> owned;

  explicit Values(const Tensor& tensor) {
    if (tensor.buffers == 1) {
      const TensorPiece piece = pieceOf(tensor, 0);
      if (!piece.on_device && piece.bytes == tensor.bytes) {
        view = {piece.data, piece.bytes};
        return;
      }
    }
    owned = gather(tensor, [&](char*, const char*, int64_t) {
      throw Failure(nameText(tensor.name) + " is in GPU memory, allowed: memory of the host; send texts in that");
    });
    view = {owned.data(), owned.size()};
  }
};

// The strings of a tensor, each of which follows its size.
std::vector<std::string_view> readStrings(const Tensor& tensor, std::string_view values) {
  const std::string name = nameText(tensor.name);
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
    throw Failure(nameText(name) + " " + std::to_string(largest) + " has " + std::to_string(strings[largest].size()) +
                  " bytes, allowed: " + std::to_string(settings.max_text_bytes) +
                  "; send a shorter text, or serve with a larger padfree_max_text_bytes");
  }
  std::vector<std::u32string> texts;
  for (size_t at = 0; at < strings.size(); ++at) {
    texts.push_back(prompt);
    const size_t bad = decodeUtf8(strings[at], texts.back());
    if (bad == kAllRead) continue;
    throw Failure(nameText(name) + " " + std::to_string(at) + " is not UTF-8 (from byte " + std::to_string(bad) +
                  " on); encode texts as UTF-8");
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
  const Values values(*tensor);
  std::vector<bool> flags;
  for (const char value : values.view) flags.push_back(value != 0);
  return flags;
}

std::vector<std::string> wantedOutputs(TRITONBACKEND_Request* request, const TextSettings& settings) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestOutputCount(request, &count));
  std::vector<std::string> wanted;
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(request, i, &name));
    if (isTextOutput(name, settings)) wanted.emplace_back(name);
  }
  return wanted;
}

std::vector<std::string> outputNames(const TextSettings& settings) {
  return {settings.ids, settings.types, settings.positions, settings.prompt_length, kSeqLens, kTruncated};
}

// A row of int32 for every text; `values(text, row)` fills it.
template <class Fill>
void writeRows(OpenRequest& request, const std::string& name, const std::vector<EncodedText>& texts, size_t width,
               const Fill& fill) {
  std::vector<int32_t> rows(texts.size() * width);
  for (size_t at = 0; at < texts.size(); ++at) fill(texts[at], rows.data() + at * width);
  const auto bytes = rows.size() * sizeof(int32_t);
  const std::vector<int64_t> shape = {static_cast<int64_t>(texts.size()), static_cast<int64_t>(width)};
  const auto target = request.addHostOutput(name, TRITONSERVER_TYPE_INT32, shape, static_cast<int64_t>(bytes));
  if (bytes > 0) std::memcpy(target, rows.data(), bytes);
}

void writeFlags(OpenRequest& request, const std::vector<EncodedText>& texts) {
  const auto count = static_cast<int64_t>(texts.size());
  char* target = request.addHostOutput(kTruncated, TRITONSERVER_TYPE_BOOL, {count, 1}, count);
  for (const EncodedText& text : texts) *target++ = text.isCut() ? 1 : 0;
}

}  // namespace

bool isTextOutput(const std::string& name, const TextSettings& settings) {
  const std::vector<std::string> names = outputNames(settings);
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string textOutputs(const TextSettings& settings) {
  std::string text;
  for (const std::string& name : outputNames(settings)) text += (text.empty() ? "" : ", ") + name;
  return text;
}

TextRequest readTexts(TRITONBACKEND_Request* request, const TextSettings& settings) {
  const std::vector<Tensor> tensors = tensorsOf(request);
  const Tensor *text = find(tensors, kText), *pair = find(tensors, kTextPair);
  if (text == nullptr) {
    throw Failure("'text' is missing; send one text per row, and 'text_pair' only beside it");
  }
  if (settings.takes_pairs_alone && pair == nullptr) {
    throw Failure("'text_pair' is missing, and the model scores pairs; send a second text for each text");
  }
  const Values values(*text);
  const auto strings = readStrings(*text, values.view);
  const Values pair_values = pair == nullptr ? Values(Tensor{}) : Values(*pair);
  const auto pair_strings = pair == nullptr ? std::vector<std::string_view>{} : readStrings(*pair, pair_values.view);
  if (pair != nullptr && pair_strings.size() != strings.size()) {
    throw Failure("'text_pair' has " + std::to_string(pair_strings.size()) + " texts, 'text' has " +
                  std::to_string(strings.size()) + "; send one second text for each text");
  }
  TextRequest read;
  for (const auto* column : {&strings, &pair_strings}) {
    for (const std::string_view string : *column) read.bytes += string.size();
  }
  if (read.bytes > static_cast<size_t>(settings.max_request_bytes)) {
    throw Failure("the request has " + std::to_string(read.bytes) +
                  " bytes of text, allowed: " + std::to_string(settings.max_request_bytes) +
                  "; send fewer texts per request, or serve with a larger padfree_max_request_bytes");
  }
  read.texts = decode(strings, kText, settings, settings.prompt);
  if (pair != nullptr) read.pairs = decode(pair_strings, kTextPair, settings, {});
  read.may_be_cut = readFlags(find(tensors, kTruncate), strings.size(), settings);
  read.wanted = wantedOutputs(request, settings);
  return read;
}

void writeTexts(OpenRequest& request, const std::vector<std::string>& wanted, const std::vector<EncodedText>& texts,
                const TextSettings& settings, int32_t prompt_tokens) {
  size_t width = 0;
  for (const EncodedText& text : texts) width = std::max(width, text.ids.size());
  for (const std::string& name : wanted) {
    if (name == settings.ids) {
      writeRows(request, name, texts, width,
                [](const EncodedText& text, int32_t* row) { std::copy(text.ids.begin(), text.ids.end(), row); });
    } else if (name == settings.types) {
      writeRows(request, name, texts, width, [&](const EncodedText& text, int32_t* row) {
        if (settings.has_types) std::copy(text.types.begin(), text.types.end(), row);
      });
    } else if (name == settings.positions) {
      writeRows(request, name, texts, width, [](const EncodedText& text, int32_t* row) {
        for (size_t at = 0; at < text.ids.size(); ++at) row[at] = static_cast<int32_t>(at);
      });
    } else if (name == settings.prompt_length) {
      writeRows(request, name, texts, 1, [&](const EncodedText&, int32_t* row) { *row = prompt_tokens; });
    } else if (name == kSeqLens) {
      writeRows(request, name, texts, 1,
                [](const EncodedText& text, int32_t* row) { *row = static_cast<int32_t>(text.ids.size()); });
    } else {
      writeFlags(request, texts);
    }
  }
}

}  // namespace padfree
