// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/request.h"

#include <cstring>
#include <string>

#include "triton_backend/failure.h"
#include "triton_backend/model_settings.h"
#include "triton_backend/values.h"

namespace padfree {
namespace {

// An input tensor as the server describes it.
struct Tensor {
  TRITONBACKEND_Input* input = nullptr;
  std::string name;
  TRITONSERVER_DataType type = 0;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  uint32_t buffers = 0;
};

std::string toText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Tensor describe(TRITONBACKEND_Request* request, uint32_t index) {
  Tensor tensor;
  const char* name = nullptr;
  const int64_t* shape = nullptr;
  uint32_t dims_count = 0;
  check(TRITONBACKEND_RequestInputByIndex(request, index, &tensor.input));
  check(TRITONBACKEND_InputProperties(tensor.input, &name, &tensor.type, &shape, &dims_count, &tensor.bytes,
                                      &tensor.buffers));
  tensor.name = name;
  tensor.shape.assign(shape, shape + dims_count);
  return tensor;
}

void checkBytes(const Tensor& tensor, int64_t item_bytes) {
  int64_t bytes = item_bytes;
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) bytes = -1;
    if (bytes < 0) break;
  }
  if (bytes < 0 || static_cast<uint64_t>(bytes) != tensor.bytes) {
    throw Failure("'" + tensor.name + "' has shape " + toText(tensor.shape) + " and " + std::to_string(tensor.bytes) +
                  " bytes, which do not go together; send as many values as the shape says");
  }
}

void checkType(const Tensor& tensor, PadfreeType type) {
  const bool is_float = type == kPadfreeFloat32;
  if (tensor.type != (is_float ? TRITONSERVER_TYPE_FP32 : TRITONSERVER_TYPE_INT32)) {
    throw Failure("'" + tensor.name + "' has another type than the model's input, allowed: " +
                  (is_float ? "FP32" : "INT32") + "; convert it before it is sent");
  }
}

// Gathers a tensor whose pieces lie apart.
void gather(const Tensor& tensor, const Engine& engine, Column& column) {
  column.owned.resize(tensor.bytes);
  size_t at = 0;
  for (uint32_t i = 0; i < tensor.buffers; ++i) {
    const void* buffer = nullptr;
    uint64_t bytes = 0;
    int64_t memory_id = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    check(TRITONBACKEND_InputBuffer(tensor.input, i, &buffer, &bytes, &memory, &memory_id));
    if (bytes > tensor.bytes - at) throw Failure("'" + tensor.name + "' has more bytes than it says");
    if (memory == TRITONSERVER_MEMORY_GPU) {
      engine.read(column.owned.data() + at, buffer, static_cast<int64_t>(bytes));
    } else if (bytes > 0) {
      std::memcpy(column.owned.data() + at, buffer, bytes);
    }
    at += bytes;
  }
  if (at != tensor.bytes) throw Failure("'" + tensor.name + "' has fewer bytes than it says");
  column.data = column.owned.data();
}

// Where the values are; `to_host`: not on a device.
Column locate(const Tensor& tensor, const Engine& engine, bool to_host) {
  Column column;
  if (tensor.buffers == 1) {
    const void* buffer = nullptr;
    uint64_t bytes = 0;
    int64_t memory_id = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    check(TRITONBACKEND_InputBuffer(tensor.input, 0, &buffer, &bytes, &memory, &memory_id));
    column.on_device = memory == TRITONSERVER_MEMORY_GPU;
    if (bytes == tensor.bytes && (!column.on_device || !to_host)) {
      column.data = static_cast<const char*>(buffer);
      return column;
    }
    column.on_device = false;
  }
  gather(tensor, engine, column);
  return column;
}

void readSize(const Tensor& ids, const Metadata& metadata, RequestData& data) {
  const Input& input = metadata.inputs[metadata.ids];
  const size_t rank = 2 + input.trailing.size();
  if (ids.shape.size() != rank || ids.shape[0] < 1 || ids.shape[1] < 1) {
    throw Failure("'" + input.name + "' has shape " + toText(ids.shape) +
                  ", allowed: [sequences, tokens], both 1 or more; send one row a sequence, special tokens included");
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
  // A number per sequence comes as a row of one.
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
    throw Failure(std::string("'") + kSeqLens + "' has shape " + toText(tensor->shape) +
                  ", allowed: " + toText({data.sequences, 1}) + "; send one length per sequence");
  }
  checkType(*tensor, kPadfreeInt32);
  checkBytes(*tensor, sizeof(int32_t));
  const Column column = locate(*tensor, engine, /*to_host=*/true);
  std::memcpy(data.seq_lens.data(), column.data, tensor->bytes);
  for (const int32_t length : data.seq_lens) {
    if (length < 1 || length > data.width) {
      throw Failure(std::string("'") + kSeqLens + "' holds " + std::to_string(length) + ", allowed: 1.." +
                    std::to_string(data.width) + ", the width of the rows; send the tokens of each sequence");
    }
  }
}

const Tensor* find(const std::vector<Tensor>& tensors, const std::string& name) {
  for (const Tensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

void readColumns(const std::vector<Tensor>& tensors, const Metadata& metadata, const Engine& engine,
                 RequestData& data) {
  const std::string& ids = metadata.inputs[metadata.ids].name;
  data.columns.resize(metadata.inputs.size());
  for (size_t i = 0; i < metadata.inputs.size(); ++i) {
    const Input& input = metadata.inputs[i];
    if (!input.comesWithRequests()) continue;
    const Tensor* tensor = find(tensors, input.name);
    if (tensor == nullptr) {
      if (input.zero_when_missing) continue;
      throw Failure("input '" + input.name + "' is missing; send it with every request for this model");
    }
    checkType(*tensor, input.type);
    checkShape(*tensor, input, data, ids);
    checkBytes(*tensor, sizeOf(input.type));
    data.columns[i] = locate(*tensor, engine, /*to_host=*/false);
    if (!data.columns[i].on_device) checkValues(input, data.columns[i].data, data.seq_lens, data.width);
  }
}

void readWanted(TRITONBACKEND_Request* request, const Metadata& metadata, RequestData& data) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(request, i, &name));
    for (size_t output = 0; output < metadata.outputs.size(); ++output) {
      if (metadata.outputs[output].name != name) continue;
      TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
      int64_t memory_id = 0;
      const bool is_known =
          succeeded(TRITONBACKEND_RequestOutputBufferProperties(request, name, nullptr, &memory, &memory_id));
      data.wanted.push_back(output);
      data.on_device.push_back(is_known && memory == TRITONSERVER_MEMORY_GPU);
    }
  }
}

}  // namespace

RequestData readRequest(TRITONBACKEND_Request* request, const Metadata& metadata, const Engine& engine) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestInputCount(request, &count));
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < count; ++i) tensors.push_back(describe(request, i));
  const Input& ids = metadata.inputs[metadata.ids];
  const Tensor* found = find(tensors, ids.name);
  if (found == nullptr) throw Failure("input '" + ids.name + "' is missing; send one row of it for every sequence");
  RequestData data;
  readSize(*found, metadata, data);
  checkType(*found, ids.type);
  checkBytes(*found, sizeOf(ids.type));  // before anything is made of that size
  readSeqLens(find(tensors, kSeqLens), engine, data);
  checkLengths(data.seq_lens, metadata);
  readColumns(tensors, metadata, engine, data);
  readWanted(request, metadata, data);
  return data;
}

}  // namespace padfree
