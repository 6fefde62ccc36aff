// SPDX-License-Identifier: Apache-2.0
// Checks of a node's tensors against its operator's ports: counts, types, formats, shapes.
#pragma once

#include <functional>
#include <vector>

#include "NvInferRuntime.h"
#include "shell/operator.h"

namespace padfree {

// Throws std::invalid_argument where a node has other numbers of tensors than its operator.
void checkCounts(const Operator& op, int32_t input_count, int32_t output_count);

// Types of the outputs. Throws std::invalid_argument where an input's type is not allowed.
std::vector<nvinfer1::DataType> outputTypes(const Operator& op, const nvinfer1::DataType* input_types);

// Names, shapes and types of the inputs, for messages: "x [7,16] FP16, cu_seqlens [4] INT32".
std::string describeInputs(const Operator& op, const nvinfer1::PluginTensorDesc* inputs);

// Whether tensor `position` (inputs, then outputs) may have its type and format, given those before it.
bool supportsTensor(const Operator& op, int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors);

// Shapes of the inputs, unknown sizes -1. Throws std::invalid_argument where they contradict the operator.
Sizes checkShapes(const Operator& op, const std::function<nvinfer1::Dims(int32_t)>& input_shape);

// Symbolic shapes of the outputs. Throws std::invalid_argument.
std::vector<nvinfer1::DimsExprs> outputShapes(const Operator& op, const nvinfer1::DimsExprs* inputs,
                                              nvinfer1::IExprBuilder& builder);

}  // namespace padfree
