// SPDX-License-Identifier: Apache-2.0
// The input tensors of a request.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "triton_backend/triton_abi.h"

namespace padfree {

// An input tensor as the server describes it.
struct Tensor {
  TRITONBACKEND_Input* input = nullptr;
  std::string name;
  TRITONSERVER_DataType type = 0;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  uint32_t buffers = 0;
};

// A piece of a tensor's values.
struct TensorPiece {
  const char* data;
  uint64_t bytes;
  bool on_device;
};

std::vector<Tensor> tensorsOf(TRITONBACKEND_Request* request);
// The same for requests with inputs of the same names, and hardly ever for others.
size_t namesOf(TRITONBACKEND_Request* request);
const Tensor* find(const std::vector<Tensor>& tensors, const std::string& name);
// The outputs that a request asks for.
std::vector<std::string> wantedNames(TRITONBACKEND_Request* request);
TensorPiece pieceOf(const Tensor& tensor, uint32_t index);

std::string toText(const std::vector<int64_t>& shape);

// Throws Failure if the tensor's size in bytes does not match its shape.
void checkBytes(const Tensor& tensor, int64_t item_bytes);

// Copies from device memory: to, from, bytes.
using DeviceReader = std::function<void(char*, const char*, int64_t)>;

// The values of one input of a request.
struct Column {
  const char* data = nullptr;  // null: zeros
  bool on_device = false;
  std::vector<char> owned;  // what data points to if it is a copy: of several pieces, or of device memory
};

// Where a tensor's values are: the server's buffer, or a copy of its pieces. With `to_host`, they are copied to the
// host if they are on a device.
Column locate(const Tensor& tensor, bool to_host, const DeviceReader& read);

}  // namespace padfree
