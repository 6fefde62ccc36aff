// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/tensors.h"

#include "common/text.h"
#include "triton_batching/failure.h"

namespace padfree {

std::vector<Tensor> tensorsOf(TRITONBACKEND_Request* request) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestInputCount(request, &count));
  std::vector<Tensor> tensors(count);
  for (uint32_t i = 0; i < count; ++i) {
    Tensor& tensor = tensors[i];
    const char* name = nullptr;
    const int64_t* shape = nullptr;
    uint32_t dims_count = 0;
    check(TRITONBACKEND_RequestInputByIndex(request, i, &tensor.input));
    check(TRITONBACKEND_InputProperties(tensor.input, &name, &tensor.type, &shape, &dims_count, &tensor.bytes,
                                        &tensor.buffers));
    tensor.name = name;
    tensor.shape.assign(shape, shape + dims_count);
  }
  return tensors;
}

size_t namesOf(TRITONBACKEND_Request* request) {
  size_t names = 0;  // a sum, because the server has no order of inputs
  for (const Tensor& tensor : tensorsOf(request)) names += std::hash<std::string>()(tensor.name);
  return names;
}

const Tensor* find(const std::vector<Tensor>& tensors, const std::string& name) {
  for (const Tensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::vector<std::string> wantedNames(TRITONBACKEND_Request* request) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestOutputCount(request, &count));
  std::vector<std::string> names;
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(request, i, &name));
    names.emplace_back(name);
  }
  return names;
}

TensorPiece pieceOf(const Tensor& tensor, uint32_t index) {
  const void* buffer = nullptr;
  uint64_t bytes = 0;
  int64_t memory_id = 0;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  check(TRITONBACKEND_InputBuffer(tensor.input, index, &buffer, &bytes, &memory, &memory_id));
  return {static_cast<const char*>(buffer), bytes, memory == TRITONSERVER_MEMORY_GPU};
}

std::string toText(const std::vector<int64_t>& shape) {
  return text('[', join(shape, ", "), ']');
}

void checkBytes(const Tensor& tensor, int64_t item_bytes) {
  int64_t bytes = item_bytes;
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) bytes = -1;
    if (bytes < 0) break;
  }
  if (bytes < 0 || static_cast<uint64_t>(bytes) != tensor.bytes) {
    throwFailure("'", tensor.name, "' has shape ", toText(tensor.shape), " and ", tensor.bytes,
                 " bytes, which do not go together; send as many values as the shape says");
  }
}

Column locate(const Tensor& tensor, bool to_host, const DeviceReader& read) {
  if (tensor.buffers == 1) {
    const TensorPiece piece = pieceOf(tensor, 0);
    if (piece.bytes == tensor.bytes && !(piece.on_device && to_host)) return {piece.data, piece.on_device, {}};
  }
  std::vector<char> values;
  for (uint32_t i = 0; i < tensor.buffers; ++i) {
    const TensorPiece piece = pieceOf(tensor, i);
    const size_t at = values.size();
    if (piece.bytes > tensor.bytes - at) throw Failure("'" + tensor.name + "' has more bytes than it says");
    if (piece.on_device) {
      values.resize(at + piece.bytes);
      read(values.data() + at, piece.data, static_cast<int64_t>(piece.bytes));
    } else {
      values.insert(values.end(), piece.data, piece.data + piece.bytes);
    }
  }
  if (values.size() != tensor.bytes) throw Failure("'" + tensor.name + "' has fewer bytes than it says");
  const char* data = values.data();
  return {data, false, std::move(values)};
}

}  // namespace padfree
