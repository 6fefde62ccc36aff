// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/text_settings.h"

#include <algorithm>

#include "common/text.h"
#include "tokenizer/utf8.h"
#include "triton_backend/parameters.h"
#include "triton_batching/failure.h"

namespace padfree {
namespace {

constexpr const char* kTokenizer = "padfree_tokenizer";
constexpr const char* kMaxLength = "padfree_max_length";

const std::string& readName(const std::string& name, const std::string& value) {
  if (value.empty()) throw Failure("'" + name + "' is empty; give it a value in config.pbtxt, or leave it out");
  return value;
}

void checkOutputs(const Json& config, const TextSettings& settings) {
  for (const Json& item : config["output"].items()) {
    const std::string& name = item["name"].text();
    if (isTextOutput(name, settings)) continue;
    throw Failure("config.pbtxt lists output '" + name.substr(0, 100) +
                  "', allowed: " + join(textOutputs(settings), ", ") +
                  "; correct it, or write the repository again with padfree triton");
  }
}

}  // namespace

const char* const kTextParameters =
    "padfree_tokenizer, padfree_max_length, padfree_long_texts, padfree_max_text_bytes, padfree_max_request_bytes, "
    "padfree_vocabulary, padfree_truncation_side, padfree_token_types, padfree_prompt, padfree_pairs, padfree_ids, "
    "padfree_types, padfree_positions, padfree_prompt_length";

bool takesTexts(const Json& config) {
  return config["parameters"][kTokenizer].isObject();
}

bool readTextParameter(const std::string& name, const std::string& value, TextSettings& settings) {
  if (name == kTokenizer) {
    settings.tokenizer = readFileName(name, value);
  } else if (name == kMaxLength) {
    settings.max_length = readNumber(name, value, 1, INT32_MAX);
  } else if (name == "padfree_long_texts") {
    settings.cuts_long_texts = readChoice(name, value, "truncate", "refuse");
  } else if (name == "padfree_max_text_bytes") {
    settings.max_text_bytes = readNumber(name, value, 1, INT32_MAX);
  } else if (name == "padfree_max_request_bytes") {
    settings.max_request_bytes = readNumber(name, value, 1, INT32_MAX);
  } else if (name == "padfree_vocabulary") {
    settings.vocabulary = readNumber(name, value, 0, INT32_MAX);
  } else if (name == "padfree_truncation_side") {
    settings.keeps_end = readChoice(name, value, "left", "right");
  } else if (name == "padfree_token_types") {
    settings.has_types = readFlag(name, value);
  } else if (name == "padfree_prompt") {
    if (decodeUtf8(readName(name, value), settings.prompt) != kAllRead) refuseParameter(name, value, "UTF-8");
  } else if (name == "padfree_pairs") {
    settings.takes_pairs_alone = readFlag(name, value);
  } else if (name == "padfree_ids") {
    settings.ids = readName(name, value);
  } else if (name == "padfree_types") {
    settings.types = readName(name, value);
  } else if (name == "padfree_positions") {
    settings.positions = readName(name, value);
  } else if (name == "padfree_prompt_length") {
    settings.prompt_length = readName(name, value);
  } else {
    return false;
  }
  return true;
}

void checkTextSettings(const TextSettings& settings) {
  if (settings.max_length != 0) return;
  throwFailure("parameter '", kMaxLength,
               "' is missing; add it to config.pbtxt, or write the repository again with padfree triton");
}

TextSettings readTextSettings(const Json& config) {
  TextSettings settings;
  for (const auto& [name, value] : config["parameters"].members()) {
    if (name.rfind(kPrefix, 0) != 0) continue;
    if (!readTextParameter(name, value["string_value"].text(), settings)) refuseUnknownParameter(name, kTextParameters);
  }
  checkTextSettings(settings);
  checkOutputs(config, settings);
  checkResponseCache(config);
  return settings;
}

std::vector<std::string> textOutputs(const TextSettings& settings) {
  return {settings.ids, settings.types, settings.positions, settings.prompt_length, kSeqLens, kTruncated};
}

bool isTextOutput(const std::string& name, const TextSettings& settings) {
  const std::vector<std::string> names = textOutputs(settings);
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace padfree
