// SPDX-License-Identifier: Apache-2.0
// What one operator's plugin.cpp says about itself; shell.h makes a TensorRT plugin of it.
#pragma once

#include <cuda_runtime_api.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "NvInferRuntime.h"
#include "common/types.h"
#include "shell/fields.h"
#include "shell/schema.h"
#include "shell/shape.h"

namespace padfree {

constexpr int kAbsent = -1;  // index of an optional input that the node does not have

// T of a node whose T depends on data: `symbol` is counted by output `output` and never above the product of `bounds`.
struct CountedSize {
  std::string symbol;
  int output;
  std::vector<std::string> bounds;
};

DataType typeOf(nvinfer1::DataType type);  // of tensors that supportsFormatCombination has let pass

// The pointers and sizes of one call. Zero-volume tensors may be null.
class Tensors {
 public:
  Tensors(const nvinfer1::PluginTensorDesc* input_descs, const void* const* inputs, void* const* outputs, void* scratch)
      : input_descs_(input_descs), inputs_(inputs), outputs_(outputs), scratch_(scratch) {}

  template <class T = void>
  const T* input(int index) const {
    return index == kAbsent ? nullptr : static_cast<const T*>(inputs_[index]);
  }
  template <class T = void>
  T* output(int index) const {
    return index == kAbsent ? nullptr : static_cast<T*>(outputs_[index]);
  }
  void* scratch() const { return scratch_; }  // null where the caller has none
  int rank(int index) const { return input_descs_[index].dims.nbDims; }
  // Size of one axis, negative ones from the end; 0 for an absent input. onShapeChange has seen that it fits an int.
  int size(int index, int axis) const {
    if (index == kAbsent) return 0;
    const nvinfer1::Dims& dims = input_descs_[index].dims;
    return static_cast<int>(dims.d[axis < 0 ? dims.nbDims + axis : axis]);
  }
  // Number of elements over the axes [first, last).
  int64_t volume(int index, int first, int last) const;
  DataType type(int index) const { return typeOf(input_descs_[index].type); }

 private:
  const nvinfer1::PluginTensorDesc* input_descs_;
  const void* const* inputs_;
  void* const* outputs_;
  void* scratch_;
};

// One node's inputs while an engine is built: types, and sizes over the profile's shapes.
class ProfiledTensors {
 public:
  explicit ProfiledTensors(const nvinfer1::DynamicPluginTensorDesc* inputs) : inputs_(inputs) {}

  DataType type(int index) const { return typeOf(inputs_[index].desc.type); }
  int minimum(int index, int axis) const { return size(index, axis, inputs_[index].min); }
  int maximum(int index, int axis) const { return size(index, axis, inputs_[index].max); }

 private:
  int size(int index, int axis, const nvinfer1::Dims& bound) const {
    const int64_t static_size = inputs_[index].desc.dims.d[axis];  // -1 where the profile gives a range
    return static_cast<int>(static_size >= 0 ? static_size : bound.d[axis]);
  }

  const nvinfer1::DynamicPluginTensorDesc* inputs_;
};

// One node's computation. Immutable after construction: shared by clones, called from several threads.
class Operator {
 public:
  // Throws std::invalid_argument where attributes do not go together. They must outlive the operator.
  Operator(const OperatorSchema& schema, const Attributes& attributes);
  virtual ~Operator() = default;

  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  const CountedSize* countedSize() const { return counted_size_.symbol.empty() ? nullptr : &counted_size_; }

  // Limits beyond what the ports' shapes say. Throws std::invalid_argument.
  virtual void checkSizes(const Sizes&) const {}
  // Sets letters that only outputs have.
  virtual void deriveSizes(SizeExpressions&) const {}
  // What the operator learns by trying on this GPU while an engine is built, for the measured field of the operator
  // that runs. May allocate and synchronise. Throws std::invalid_argument where the operator cannot run on this GPU.
  virtual std::vector<int32_t> measure(const ProfiledTensors&) const { return {}; }
  // Bytes of memory that a call may use, of any contents before and after it: Tensors::scratch().
  virtual int64_t scratchBytes() const { return 0; }
  // Only puts work on the stream: no allocation, no synchronisation.
  virtual cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const = 0;

 protected:
  // The index of the tensor with a name, kAbsent where the node does not have it.
  int input(const char* name) const;
  int output(const char* name) const;
  void countSize(CountedSize counted_size) { counted_size_ = std::move(counted_size); }

  const Attributes& attributes_;

 private:
  std::vector<Port> inputs_, outputs_;
  CountedSize counted_size_{};
};

struct OperatorInfo {
  OperatorSchema schema;
  // Throws std::invalid_argument.
  std::unique_ptr<const Operator> (*make)(const OperatorSchema& schema, const Attributes& attributes);
};

template <class Kind>
std::unique_ptr<const Operator> makeOperator(const OperatorSchema& schema, const Attributes& attributes) {
  return std::make_unique<const Kind>(schema, attributes);
}

}  // namespace padfree
