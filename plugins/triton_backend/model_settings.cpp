// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/model_settings.h"

#include <algorithm>
#include <utility>

#include "triton_backend/failure.h"
#include "triton_backend/parameters.h"

namespace padfree {
namespace {

constexpr const char* kContexts = "padfree_contexts";
constexpr const char* kCudaGraphs = "padfree_cuda_graphs";
constexpr const char* kAllowOtherGpu = "padfree_allow_other_gpu";
constexpr const char* kModel = "padfree_model";
constexpr int64_t kMostContexts = 8;

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
  } else {
    refuseUnknownParameter(name, std::string(kModel) + ", " + kMaxTokens + ", " + kMaxSequences + ", " + kContexts +
                                     ", " + kCudaGraphs + ", " + kAllowOtherGpu);
  }
}

const char* typeName(PadfreeType type) {
  switch (type) {
    case kPadfreeFloat32:
      return "TYPE_FP32";
    case kPadfreeFloat16:
      return "TYPE_FP16";
    case kPadfreeBFloat16:
      return "TYPE_BF16";
    case kPadfreeInt32:
      return "TYPE_INT32";
    case kPadfreeInt64:
      return "TYPE_INT64";
    case kPadfreeBool:
      return "TYPE_BOOL";
  }
  return "TYPE_INVALID";
}

void checkTensor(const char* kind, const Json& item, const char* type) {
  const std::string& name = item["name"].text();
  if (type == nullptr) {
    throw Failure(std::string("config.pbtxt has the ") + kind + " '" + name.substr(0, 100) +
                  "', which the plan does not have; leave it out, or write the repository again with padfree triton");
  }
  if (item["data_type"].text() != type) {
    throw Failure(std::string("config.pbtxt has the ") + kind + " '" + name + "' with " + item["data_type"].text() +
                  ", allowed: " + type + ", which the plan has; correct config.pbtxt");
  }
}

Json dimsOf(const std::vector<int64_t>& leading, const std::vector<int64_t>& trailing) {
  Json dims = Json::array();
  for (const int64_t size : leading) dims.append(Json::number(size));
  for (const int64_t size : trailing) dims.append(Json::number(size));
  return dims;
}

Json tensorOf(const std::string& name, const char* type, Json dims) {
  Json item = Json::object();
  item.set("name", Json::string(name));
  item.set("data_type", Json::string(type));
  item.set("dims", std::move(dims));
  return item;
}

Json inputsOf(const Metadata& metadata) {
  Json inputs = Json::array();
  for (const Input& input : metadata.inputs) {
    if (!input.comesWithRequests()) continue;
    const bool is_of_tokens = input.role == Input::Role::kTokens;
    std::vector<int64_t> leading;
    if (is_of_tokens) leading.push_back(-1);
    if (!is_of_tokens && input.trailing.empty()) leading.push_back(1);
    Json item = tensorOf(input.name, typeName(input.type), dimsOf(leading, input.trailing));
    if (is_of_tokens) item.set("allow_ragged_batch", Json::literal("true"));
    if (input.zero_when_missing) item.set("optional", Json::literal("true"));
    inputs.append(std::move(item));
  }
  Json seq_lens = tensorOf(kSeqLens, typeName(kPadfreeInt32), dimsOf({1}, {}));
  seq_lens.set("optional", Json::literal("true"));
  inputs.append(std::move(seq_lens));
  return inputs;
}

Json outputsOf(const Metadata& metadata) {
  Json outputs = Json::array();
  for (const Output& output : metadata.outputs) {
    const bool is_of_tokens = output.rows == kPadfreeTokens;
    std::vector<int64_t> leading;
    if (is_of_tokens) leading.push_back(-1);
    const bool is_number = !is_of_tokens && output.trailing.empty();
    if (is_number) leading.push_back(1);
    Json item = tensorOf(output.name, typeName(output.type), dimsOf(leading, output.trailing));
    if (is_number) {  // clients get [n]: dims must not be empty, so they are [1], and the server drops the 1
      Json reshape = Json::object();
      reshape.set("shape", Json::array());
      item.set("reshape", std::move(reshape));
    }
    outputs.append(std::move(item));
  }
  return outputs;
}

}  // namespace

ModelSettings readModelSettings(Json config) {
  ModelSettings settings;
  settings.file = config["default_model_filename"].text();
  if (settings.file.empty()) settings.file = "model.plan";
  for (const auto& [name, value] : config["parameters"].members()) {
    if (name.rfind(kPrefix, 0) == 0) readParameter(name, value["string_value"].text(), settings);
  }
  settings.config = std::move(config);
  return settings;
}

void checkConfiguration(const Json& config, const Metadata& metadata) {
  for (const Json& item : config["input"].items()) {
    const char* type = item["name"].text() == kSeqLens ? typeName(kPadfreeInt32) : nullptr;
    for (const Input& input : metadata.inputs) {
      if (input.comesWithRequests() && input.name == item["name"].text()) type = typeName(input.type);
    }
    checkTensor("input", item, type);
  }
  for (const Json& item : config["output"].items()) {
    const char* type = nullptr;
    for (const Output& output : metadata.outputs) {
      if (output.name == item["name"].text()) type = typeName(output.type);
    }
    checkTensor("output", item, type);
  }
  if (config["max_batch_size"].text().empty() || config["max_batch_size"].text() == "0") {
    throw Failure(
        "max_batch_size is 0, allowed: 1 or more; give config.pbtxt the most sequences of a request, or let "
        "the server complete it (without --disable-auto-complete-config)");
  }
  checkResponseCache(config);
}

void completeConfiguration(Json& config, const Metadata& metadata) {
  if (config["input"].items().empty()) config.set("input", inputsOf(metadata));
  if (config["output"].items().empty()) config.set("output", outputsOf(metadata));
  if (config["max_batch_size"].text().empty() || config["max_batch_size"].text() == "0") {
    config.set("max_batch_size", Json::number(std::min(metadata.max_sequences, metadata.max_tokens)));
  }
  const bool is_scheduled = config["dynamic_batching"].isObject() || config["sequence_batching"].isObject() ||
                            config["ensemble_scheduling"].isObject();
  if (!is_scheduled) config.set("dynamic_batching", Json::object());
}

}  // namespace padfree
