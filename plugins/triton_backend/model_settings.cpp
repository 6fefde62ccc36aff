// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/model_settings.h"

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "triton_backend/parameters.h"
#include "triton_batching/failure.h"

namespace padfree {
namespace {

constexpr const char* kContexts = "padfree_contexts";
constexpr const char* kCudaGraphs = "padfree_cuda_graphs";
constexpr const char* kAllowOtherGpu = "padfree_allow_other_gpu";
constexpr const char* kModel = "padfree_model";
constexpr int64_t kMostContexts = 8;
constexpr const char *kString = "TYPE_STRING", *kInt32 = "TYPE_INT32", *kBool = "TYPE_BOOL";  // of own tensors

void readParameter(const std::string& name, const std::string& value, ModelSettings& settings) {
  if (name == kMaxTokens) {
    settings.max_tokens = readNumber(name, value, 0, INT32_MAX);
  } else if (name == kMaxSequences) {
    settings.max_sequences = readNumber(name, value, 0, INT32_MAX);
  } else if (name == kContexts) {
    settings.contexts = readNumber(name, value, 1, kMostContexts);
  } else if (name == kCudaGraphs) {
    settings.cuda_graphs = readFlag(name, value);
  } else if (name == kAllowOtherGpu) {
    settings.allow_other_gpu = readFlag(name, value);
  } else if (name == kModel) {
    settings.file = readFileName(name, value);
  } else if (!settings.texts || !readTextParameter(name, value, *settings.texts)) {
    refuseUnknownParameter(name, std::string(kModel) + ", " + kMaxTokens + ", " + kMaxSequences + ", " + kContexts +
                                     ", " + kCudaGraphs + ", " + kAllowOtherGpu + ", and for texts " + kTextParameters);
  }
}

void checkTensor(const char* kind, const Json& item, const char* type) {
  const std::string& name = item["name"].text();
  if (type == nullptr) {
    throwFailure("config.pbtxt has the ", kind, " '", name.substr(0, 100),
                 "', which the plan does not have; leave it out, or write the repository again with padfree triton");
  }
  if (item["data_type"].text() != type) {
    throwFailure("config.pbtxt has the ", kind, " '", name, "' with ", item["data_type"].text(), ", allowed: ", type,
                 ", which the plan has; correct config.pbtxt");
  }
}

Json dimsOf(const std::vector<int64_t>& leading, const std::vector<int64_t>& trailing) {
  Json dims = Json::array();
  for (const int64_t size : leading) dims.append(Json::number(size));
  for (const int64_t size : trailing) dims.append(Json::number(size));
  return dims;
}

// [-1, ...] of tokens, [...] of sequences, and [1] of a number for each.
Json dimsOfRows(bool is_of_tokens, const std::vector<int64_t>& trailing) {
  if (is_of_tokens) return dimsOf({-1}, trailing);
  return trailing.empty() ? dimsOf({1}, {}) : dimsOf({}, trailing);
}

Json tensorOf(const std::string& name, const char* type, Json dims) {
  Json item = Json::object();
  item.set("name", Json::string(name));
  item.set("data_type", Json::string(type));
  item.set("dims", std::move(dims));
  return item;
}

void appendOptional(Json& inputs, const char* name, const char* type) {
  Json item = tensorOf(name, type, dimsOf({1}, {}));
  item.set("optional", Json::literal("true"));
  inputs.append(std::move(item));
}

Json inputsOf(const Metadata& metadata, const std::optional<TextSettings>& texts) {
  Json inputs = Json::array();
  for (const Input& input : metadata.inputs) {
    if (!input.comesWithRequests()) continue;
    const bool is_of_tokens = input.role == Input::Role::kTokens;
    Json item = tensorOf(input.name, infoOf(input.type).config, dimsOfRows(is_of_tokens, input.trailing));
    if (is_of_tokens) item.set("allow_ragged_batch", Json::literal("true"));
    if (input.zero_when_missing || (texts && isFromTexts(input, *texts))) item.set("optional", Json::literal("true"));
    inputs.append(std::move(item));
  }
  appendOptional(inputs, kSeqLens, kInt32);
  if (texts) {
    appendOptional(inputs, kText, kString);
    appendOptional(inputs, kTextPair, kString);
    appendOptional(inputs, kTruncate, kBool);
  }
  return inputs;
}

bool hasTokenOutputs(const Metadata& metadata) {
  const auto& outputs = metadata.outputs;
  return std::any_of(outputs.begin(), outputs.end(), [](const Output& item) { return item.rows == kPadfreeTokens; });
}

Json outputsOf(const Metadata& metadata, const std::optional<TextSettings>& texts) {
  Json outputs = Json::array();
  for (const Output& output : metadata.outputs) {
    const bool is_of_tokens = output.rows == kPadfreeTokens;
    Json item = tensorOf(output.name, infoOf(output.type).config, dimsOfRows(is_of_tokens, output.trailing));
    if (!is_of_tokens &&
        output.trailing
            .empty()) {  // clients get [n]: dims must not be empty, so they are [1], and the server drops the 1
      Json reshape = Json::object();
      reshape.set("shape", Json::array());
      item.set("reshape", std::move(reshape));
    }
    outputs.append(std::move(item));
  }
  // Which rows of an answer are a text's, and whether its end was cut off.
  if (texts && hasTokenOutputs(metadata)) {
    outputs.append(tensorOf(kSeqLens, kInt32, dimsOf({1}, {})));
  }
  if (texts) outputs.append(tensorOf(kTruncated, kBool, dimsOf({1}, {})));
  return outputs;
}

// The type of an input that every model has, or every one that takes texts; null for other inputs.
const char* typeOfOwnInput(const std::string& name, bool takes_texts) {
  if (name == kSeqLens) return kInt32;
  if (takes_texts && (name == kText || name == kTextPair)) return kString;
  return takes_texts && name == kTruncate ? kBool : nullptr;
}

const char* typeOfOwnOutput(const std::string& name, bool takes_texts) {
  if (takes_texts && name == kSeqLens) return kInt32;
  return takes_texts && name == kTruncated ? kBool : nullptr;
}

// Throws Failure if texts cannot give the plan's inputs their values.
void checkTexts(const TextSettings& texts, const Metadata& metadata) {
  const std::string remedy = "; write the repository again with padfree triton";
  if (metadata.inputs[metadata.ids].name != texts.ids) {
    throw Failure("'padfree_ids' is '" + texts.ids.substr(0, 100) + "', the plan's input of ids is '" +
                  metadata.inputs[metadata.ids].name + "'" + remedy);
  }
  if (texts.max_length > metadata.longest) {
    throwFailure("'padfree_max_length' is ", texts.max_length, ", allowed: at most ", metadata.longest,
                 ", the longest sequence that the plan takes; correct config.pbtxt");
  }
  for (const Input& input : metadata.inputs) {
    if (typeOfOwnInput(input.name, /*takes_texts=*/true) != nullptr && input.comesWithRequests()) {
      throw Failure("the plan's input '" + input.name +
                    "' has the name of an input of texts; take 'padfree_tokenizer' out");
    }
    const bool is_from_texts = isFromTexts(input, texts);
    const bool fits = is_from_texts ? input.type == kPadfreeInt32 && input.trailing.empty()
                                    : input.role != Input::Role::kTokens || input.zero_when_missing;
    if (fits) continue;
    throw Failure("texts give no values of the plan's input '" + input.name +
                  "'; take 'padfree_tokenizer' out of config.pbtxt, and send token ids");
  }
  for (const Output& output : metadata.outputs) {
    if (typeOfOwnOutput(output.name, /*takes_texts=*/true) == nullptr) continue;
    throw Failure("the plan's output '" + output.name +
                  "' has the name of an output of texts; take 'padfree_tokenizer' out");
  }
}

bool lacksBatchSize(const Json& config) {
  const std::string& size = config["max_batch_size"].text();
  return size.empty() || size == "0";
}

}  // namespace

bool isWithoutPlan(const Json& config) {
  return takesTexts(config) && !config["parameters"][kModel].isObject();
}

bool isFromTexts(const Input& input, const TextSettings& texts) {
  if (input.role == Input::Role::kPerSequence) return input.name == texts.prompt_length;
  return input.role == Input::Role::kTokens &&
         (input.name == texts.ids || input.name == texts.types || input.name == texts.positions);
}

ModelSettings readModelSettings(Json config) {
  ModelSettings settings;
  settings.file = config["default_model_filename"].text();
  if (settings.file.empty()) settings.file = "model.plan";
  if (takesTexts(config)) settings.texts.emplace();
  for (const auto& [name, value] : config["parameters"].members()) {
    if (name.rfind(kPrefix, 0) == 0) readParameter(name, value["string_value"].text(), settings);
  }
  if (settings.texts) checkTextSettings(*settings.texts);
  settings.config = std::move(config);
  return settings;
}

void checkConfiguration(const ModelSettings& settings, const Metadata& metadata) {
  const Json& config = settings.config;
  const bool takes_texts = settings.texts.has_value();
  if (takes_texts) checkTexts(*settings.texts, metadata);
  for (const Json& item : config["input"].items()) {
    const char* type = typeOfOwnInput(item["name"].text(), takes_texts);
    for (const Input& input : metadata.inputs) {
      if (input.comesWithRequests() && input.name == item["name"].text()) type = infoOf(input.type).config;
    }
    checkTensor("input", item, type);
  }
  for (const Json& item : config["output"].items()) {
    const char* type = typeOfOwnOutput(item["name"].text(), takes_texts);
    for (const Output& output : metadata.outputs) {
      if (output.name == item["name"].text()) type = infoOf(output.type).config;
    }
    checkTensor("output", item, type);
  }
  if (lacksBatchSize(config)) {
    throw Failure(
        "max_batch_size is 0, allowed: 1 or more; give config.pbtxt the most sequences of a request, or let "
        "the server complete it (without --disable-auto-complete-config)");
  }
  checkResponseCache(config);
}

void completeConfiguration(ModelSettings& settings, const Metadata& metadata) {
  Json& config = settings.config;
  if (config["input"].items().empty()) config.set("input", inputsOf(metadata, settings.texts));
  if (config["output"].items().empty()) config.set("output", outputsOf(metadata, settings.texts));
  if (lacksBatchSize(config)) {
    config.set("max_batch_size", Json::number(std::min(metadata.max_sequences, metadata.max_tokens)));
  }
  const bool is_scheduled = config["dynamic_batching"].isObject() || config["sequence_batching"].isObject() ||
                            config["ensemble_scheduling"].isObject();
  if (!is_scheduled) config.set("dynamic_batching", Json::object());
}

}  // namespace padfree
