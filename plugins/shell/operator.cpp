// SPDX-License-Identifier: Apache-2.0
#include "shell/operator.h"

#include <cstring>

namespace padfree {
namespace {

int indexOf(const std::vector<Port>& ports, const char* name) {
  for (size_t i = 0; i < ports.size(); ++i) {
    if (std::strcmp(ports[i].name, name) == 0) return static_cast<int>(i);
  }
  return kAbsent;
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

Operator::Operator(const OperatorSchema& schema, const Attributes& attributes)
    : attributes_(attributes),
      inputs_(schema.ports(schema.inputs, attributes)),
      outputs_(schema.ports(schema.outputs, attributes)) {
  schema.check(attributes);
}

int Operator::input(const char* name) const {
  return indexOf(inputs_, name);
}

int Operator::output(const char* name) const {
  return indexOf(outputs_, name);
}

}  // namespace padfree
