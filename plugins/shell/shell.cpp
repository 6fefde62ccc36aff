// SPDX-License-Identifier: Apache-2.0
#include "shell/shell.h"

#include <algorithm>

#include "common/text.h"
#include "shell/device_code.h"
#include "shell/logging.h"
#include "shell/signature.h"

namespace padfree {
namespace {

using nvinfer1::PluginCapabilityType;

constexpr int32_t kSuccess = 0;
constexpr int32_t kFailure = -1;

std::string label(const char* plugin, const char* node) {
  return node == nullptr || *node == '\0' ? plugin : text(plugin, " '", node, "'");
}

}  // namespace

Node::Node(const OperatorInfo& operator_info, const char* node_name, const nvinfer1::PluginFieldCollection& fields)
    : info(operator_info),
      attributes(operator_info.schema.fields, fields),
      op(operator_info.make(operator_info.schema, attributes)),
      who(label(operator_info.schema.name, node_name)),
      properties(text(operator_info.schema.name, " 1 ", attributes.describe())) {}

Node::Node(std::shared_ptr<const Node> unmeasured, std::vector<int32_t> measured)
    : info(unmeasured->info),
      attributes(unmeasured->attributes, std::move(measured)),
      op(info.make(info.schema, attributes)),
      who(unmeasured->who),
      properties(unmeasured->properties),
      before(std::move(unmeasured)) {}

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(PluginCapabilityType type) noexcept {
  switch (type) {
    case PluginCapabilityType::kCORE:
      return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case PluginCapabilityType::kBUILD:
      return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case PluginCapabilityType::kRUNTIME:
      return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

nvinfer1::IPluginV3* Plugin::clone() noexcept {
  return guard(node_->who, static_cast<Plugin*>(nullptr), [&] { return new Plugin(node_); });
}

nvinfer1::IPluginV3* Plugin::attachToContext(nvinfer1::IPluginResourceContext*) noexcept {
  return clone();
}

int32_t Plugin::configurePlugin(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                                const nvinfer1::DynamicPluginTensorDesc*, int32_t output_count) noexcept {
  return guard(node_->who, kFailure, [&] {
    checkCounts(*node_->op, input_count, output_count);
    checkShapes(*node_->op, [inputs](int32_t i) { return inputs[i].desc.dims; });
    std::vector<int32_t> measured = node_->op->measure(ProfiledTensors(inputs));
    if (!measured.empty()) node_ = std::make_shared<const Node>(node_, std::move(measured));
    return kSuccess;
  });
}

int32_t Plugin::getOutputDataTypes(nvinfer1::DataType* output_types, int32_t output_count,
                                   const nvinfer1::DataType* input_types, int32_t input_count) const noexcept {
  return guard(node_->who, kFailure, [&] {
    checkCounts(*node_->op, input_count, output_count);
    const auto types = outputTypes(*node_->op, input_types);
    std::copy(types.begin(), types.end(), output_types);
    return kSuccess;
  });
}

int32_t Plugin::getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count, const nvinfer1::DimsExprs*,
                                int32_t, nvinfer1::DimsExprs* outputs, int32_t output_count,
                                nvinfer1::IExprBuilder& builder) noexcept {
  return guard(node_->who, kFailure, [&] {
    checkCounts(*node_->op, input_count, output_count);
    const auto shapes = outputShapes(*node_->op, inputs, builder);
    std::copy(shapes.begin(), shapes.end(), outputs);
    return kSuccess;
  });
}

bool Plugin::supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors,
                                       int32_t input_count, int32_t output_count) noexcept {
  return guard(node_->who, false, [&] {
    checkCounts(*node_->op, input_count, output_count);
    return supportsTensor(*node_->op, position, tensors);
  });
}

int32_t Plugin::getNbOutputs() const noexcept {
  return static_cast<int32_t>(node_->op->outputs().size());
}

size_t Plugin::getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc*, int32_t,
                                const nvinfer1::DynamicPluginTensorDesc*, int32_t) const noexcept {
  return guard(node_->who, size_t{0}, [&] { return static_cast<size_t>(node_->op->scratchBytes()); });
}

int32_t Plugin::onShapeChange(const nvinfer1::PluginTensorDesc* inputs, int32_t input_count,
                              const nvinfer1::PluginTensorDesc*, int32_t output_count) noexcept {
  return guard(node_->who, kFailure, [&] {
    checkCounts(*node_->op, input_count, output_count);
    checkShapes(*node_->op, [inputs](int32_t i) { return inputs[i].dims; });
    return kSuccess;
  });
}

int32_t Plugin::enqueue(const nvinfer1::PluginTensorDesc* input_descs, const nvinfer1::PluginTensorDesc*,
                        const void* const* inputs, void* const* outputs, void* workspace,
                        cudaStream_t stream) noexcept {
  return guard(node_->who, static_cast<int32_t>(cudaErrorUnknown), [&] {
    const cudaError_t status = node_->op->enqueue(Tensors(input_descs, inputs, outputs, workspace), stream);
    if (status != cudaSuccess) {
      logError(text(node_->who, ": the launch on ", describeInputs(*node_->op, input_descs),
                    " failed: ", reasonOf(status), nextStepOf(status)));
    }
    return static_cast<int32_t>(status);
  });
}

const nvinfer1::PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
  return node_->attributes.serialised();
}

Creator::Creator(OperatorInfo info) : info_(std::move(info)) {
  fields_.reserve(info_.schema.fields.size() + 1);  // never a null pointer, even without attributes
  for (const FieldSpec& spec : info_.schema.fields) {
    if (!spec.measured) fields_.emplace_back(spec.name, nullptr, spec.type, 1);
  }
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

nvinfer1::IPluginV3* Creator::createPlugin(const char* name, const nvinfer1::PluginFieldCollection* fields,
                                           nvinfer1::TensorRTPhase) noexcept {
  try {
    return guard(label(info_.schema.name, name), static_cast<Plugin*>(nullptr), [&] {
      const nvinfer1::PluginFieldCollection none{};
      return new Plugin(std::make_shared<const Node>(info_, name, fields == nullptr ? none : *fields));
    });
  } catch (...) {  // the label itself found no memory
    logError("out of memory");
    return nullptr;
  }
}

}  // namespace padfree
