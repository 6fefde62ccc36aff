// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/request.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/text.h"
#include "triton_backend/model_settings.h"
#include "triton_backend/values.h"
#include "triton_batching/failure.h"

namespace padfree {
namespace {

void checkType(const Tensor& tensor, PadfreeType type) {
  if (tensor.type == infoOf(type).triton) return;
  throw Failure("'" + tensor.name + "' has another type than the model's input, allowed: " +
                (type == kPadfreeFloat32 ? "FP32" : "INT32") + "; convert it before it is sent");
}

DeviceReader readerOf(const Engine& engine) {
  return [&engine](char* to, const char* from, int64_t bytes) { engine.read(to, from, bytes); };
}

void readSize(const Tensor& ids, const Metadata& metadata, RequestData& data) {
  const Input& input = metadata.inputs[metadata.ids];
  const size_t rank = 2 + input.trailing.size();
  if (ids.shape.size() != rank || ids.shape[0] < 1 || ids.shape[1] < 1) {
    throw Failure("'" + input.name + "' has shape " + toText(ids.shape) +
                  ", allowed: [sequences, tokens], both 1 or more; send one row per sequence, special tokens included");
  }
  data.sequences = ids.shape[0];
  data.width = ids.shape[1];
  if (data.sequences > INT32_MAX || data.width > INT32_MAX) {
    throw Failure("'" + input.name + "' has shape " + toText(ids.shape) + ", allowed: sizes of 32 bits");
  }
}

void checkShape(const Tensor& tensor, const Input& input, const RequestData& data, const std::string& ids) {
  std::vector<int64_t> wanted = {data.sequences};
  if (input.role == Input::Role::kTokens) wanted.push_back(data.width);
  wanted.insert(wanted.end(), input.trailing.begin(), input.trailing.end());
  // A single number per sequence comes as a row of one.
  if (input.role == Input::Role::kPerSequence && input.trailing.empty()) wanted.push_back(1);
  if (tensor.shape == wanted) return;
  const char* each = input.role == Input::Role::kTokens ? "token" : "sequence";
  throw Failure("'" + input.name + "' has shape " + toText(tensor.shape) + ", '" + ids + "' asks for " +
                toText(wanted) + "; send one value for every " + each);
}

void readSeqLens(const Tensor* tensor, const Engine& engine, RequestData& data) {
  data.seq_lens.assign(data.sequences, static_cast<int32_t>(data.width));
  if (tensor == nullptr) return;
  if (tensor->shape != std::vector<int64_t>{data.sequences, 1}) {
    throwFailure("'", kSeqLens, "' has shape ", toText(tensor->shape), ", allowed: ", toText({data.sequences, 1}),
                 "; send one length per sequence");
  }
  checkType(*tensor, kPadfreeInt32);
  checkBytes(*tensor, sizeof(int32_t));
  const Column column = locate(*tensor, /*to_host=*/true, readerOf(engine));
  std::memcpy(data.seq_lens.data(), column.data, tensor->bytes);
  for (const int32_t length : data.seq_lens) {
    if (length < 1 || length > data.width) {
      throwFailure("'", kSeqLens, "' holds ", length, ", allowed: 1..", data.width,
                   ", the width of the rows; send the tokens of each sequence");
    }
  }
}

// Reads the inputs that have no values yet. counted: the tensor that says how many sequences there are.
void readColumns(const std::vector<Tensor>& tensors, const Metadata& metadata, const Engine& engine,
                 const std::string& counted, RequestData& data) {
  data.columns.resize(metadata.inputs.size());
  for (size_t i = 0; i < metadata.inputs.size(); ++i) {
    const Input& input = metadata.inputs[i];
    if (!input.comesWithRequests() || data.columns[i].data != nullptr) continue;
    const Tensor* tensor = find(tensors, input.name);
    if (tensor == nullptr) {
      if (input.zero_when_missing) continue;
      throw Failure("input '" + input.name + "' is missing; send it with every request for this model");
    }
    checkType(*tensor, input.type);
    checkShape(*tensor, input, data, counted);
    checkBytes(*tensor, infoOf(input.type).bytes);
    data.columns[i] = locate(*tensor, /*to_host=*/false, readerOf(engine));
    if (!data.columns[i].on_device) checkValues(input, data.columns[i].data, data.seq_lens, data.width);
  }
}

void readIds(const std::vector<Tensor>& tensors, const Metadata& metadata, const Engine& engine, bool takes_texts,
             RequestData& data) {
  const Input& ids = metadata.inputs[metadata.ids];
  const Tensor* found = find(tensors, ids.name);
  if (found == nullptr) {
    throw Failure(takes_texts
                      ? "inputs '" + ids.name + "' and 'text' are missing; send one row of either for every sequence"
                      : "input '" + ids.name + "' is missing; send one row of it for every sequence");
  }
  readSize(*found, metadata, data);
  checkType(*found, ids.type);
  checkBytes(*found, infoOf(ids.type).bytes);  // before anything is allocated for that size
  readSeqLens(find(tensors, kSeqLens), engine, data);
  checkLengths(data.seq_lens, metadata);
  readColumns(tensors, metadata, engine, ids.name, data);
}

bool hasTexts(const std::vector<Tensor>& tensors) {
  return find(tensors, kText) != nullptr || find(tensors, kTextPair) != nullptr || find(tensors, kTruncate) != nullptr;
}

// Refuses a tensor whose values follow from the texts.
void checkAbsent(const std::vector<Tensor>& tensors, const std::string& name, const std::string& ids) {
  if (find(tensors, name) == nullptr) return;
  throw Failure("the request has texts and '" + name + "', which " +
                (name == ids ? "texts are turned into" : "goes with '" + ids + "'") +
                "; send either texts or token ids, the others in a request of their own");
}

Column columnOf(const TextRows& rows) {
  const auto* bytes = reinterpret_cast<const char*>(rows.values.data());
  Column column;
  column.owned.assign(bytes, bytes + rows.values.size() * sizeof(int32_t));
  column.data = column.owned.data();
  return column;
}

// Turns texts into sequences.
void tokenize(const std::vector<Tensor>& tensors, const TextTokenizer& tokenizer, const Metadata& metadata,
              RequestData& data) {
  const TextSettings& settings = tokenizer.settings();
  const std::vector<EncodedText> texts = tokenizer.encode(readTexts(tensors, settings));
  data.sequences = static_cast<int64_t>(texts.size());
  data.columns.resize(metadata.inputs.size());
  for (const EncodedText& encoded : texts) {
    if (encoded.ids.empty()) {
      throwFailure("text ", data.seq_lens.size(), " has no tokens; send a text with a word in it");
    }
    data.seq_lens.push_back(static_cast<int32_t>(encoded.ids.size()));
    data.width = std::max<int64_t>(data.width, data.seq_lens.back());
    data.truncated.push_back(encoded.isCut() ? 1 : 0);
  }
  for (size_t i = 0; i < metadata.inputs.size(); ++i) {
    const Input& input = metadata.inputs[i];
    if (!isFromTexts(input, settings)) continue;
    data.columns[i] = columnOf(rowsOf(input.name, texts, settings, tokenizer.promptTokens()));
    checkValues(input, data.columns[i].data, data.seq_lens, data.width);
  }
}

void readWanted(TRITONBACKEND_Request* request, const Metadata& metadata, RequestData& data) {
  for (const std::string& name : wantedNames(request)) {
    data.wants_seq_lens = data.wants_seq_lens || name == kSeqLens;
    data.wants_truncated = data.wants_truncated || name == kTruncated;
    for (size_t output = 0; output < metadata.outputs.size(); ++output) {
      if (metadata.outputs[output].name != name) continue;
      TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
      int64_t memory_id = 0;
      const bool is_known =
          succeeded(TRITONBACKEND_RequestOutputBufferProperties(request, name.c_str(), nullptr, &memory, &memory_id));
      data.wanted.push_back(output);
      data.on_device.push_back(is_known && memory == TRITONSERVER_MEMORY_GPU);
    }
  }
}

}  // namespace

RequestData readRequest(TRITONBACKEND_Request* request, const Metadata& metadata, const Engine& engine,
                        const TextTokenizer* texts) {
  const std::vector<Tensor> tensors = tensorsOf(request);
  RequestData data;
  if (texts != nullptr && hasTexts(tensors)) {
    const std::string& ids = metadata.inputs[metadata.ids].name;
    checkAbsent(tensors, kSeqLens, ids);
    for (const Input& input : metadata.inputs) {
      if (isFromTexts(input, texts->settings())) checkAbsent(tensors, input.name, ids);
    }
    tokenize(tensors, *texts, metadata, data);
    readColumns(tensors, metadata, engine, kText, data);
  } else {
    readIds(tensors, metadata, engine, texts != nullptr, data);
  }
  readWanted(request, metadata, data);
  return data;
}

}  // namespace padfree
