// SPDX-License-Identifier: Apache-2.0
#include "shell/operator.h"

namespace padfree {
namespace {

int addPort(std::vector<Port>& ports, const char* name, TensorKind kind, const std::string& shape, bool present) {
  if (!present) return kAbsent;
  ports.push_back({name, kind, ShapeSpec(shape)});
  return static_cast<int>(ports.size()) - 1;
}

}  // namespace

int64_t Tensors::volume(int index, int first, int last) const {
  int64_t volume = 1;
  for (int axis = first; axis < last; ++axis) volume *= input_descs_[index].dims.d[axis];
  return volume;
}

DataType typeOf(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kHALF:
      return DataType::kFloat16;
    case nvinfer1::DataType::kBF16:
      return DataType::kBFloat16;
    case nvinfer1::DataType::kINT32:
      return DataType::kInt32;
    default:
      return DataType::kFloat32;
  }
}

int Operator::addInput(const char* name, TensorKind kind, const std::string& shape, bool present) {
  return addPort(inputs_, name, kind, shape, present);
}

int Operator::addOutput(const char* name, TensorKind kind, const std::string& shape, bool present) {
  return addPort(outputs_, name, kind, shape, present);
}

}  // namespace padfree
