// SPDX-License-Identifier: Apache-2.0
// An Operator as TensorRT sees it. Every virtual function catches: nothing throws across the ABI.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "NvInferRuntime.h"
#include "shell/operator.h"

namespace padfree {

// What clones of one plugin share: it never changes.
struct Node {
  Node(const OperatorInfo& operator_info, const char* node_name, const nvinfer1::PluginFieldCollection& fields);
  Node(std::shared_ptr<const Node> unmeasured, std::vector<int32_t> measured);

  const OperatorInfo& info;
  const Attributes attributes;
  const std::unique_ptr<const Operator> op;
  const std::string who;                     // "PadfreePool 'node_3'", for messages
  const std::string properties;              // the attributes as text: timing-cache id and inspector metadata
  const std::shared_ptr<const Node> before;  // what it was before the measurement: TensorRT may hold its texts
};

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuild,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  explicit Plugin(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  const char* getPluginName() const noexcept override { return node_->info.schema.name; }
  const char* getPluginVersion() const noexcept override { return "1"; }
  const char* getPluginNamespace() const noexcept override { return ""; }

  int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                          const nvinfer1::DynamicPluginTensorDesc* outputs, int32_t output_count) noexcept override;
  int32_t getOutputDataTypes(nvinfer1::DataType* output_types, int32_t output_count,
                             const nvinfer1::DataType* input_types, int32_t input_count) const noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                          const nvinfer1::DimsExprs* shape_inputs, int32_t shape_input_count,
                          nvinfer1::DimsExprs* outputs, int32_t output_count,
                          nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors,
                                 int32_t input_count, int32_t output_count) noexcept override;
  int32_t getNbOutputs() const noexcept override;
  const char* getTimingCacheID() noexcept override { return node_->properties.c_str(); }
  const char* getMetadataString() noexcept override { return node_->properties.c_str(); }

  size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                          const nvinfer1::DynamicPluginTensorDesc* outputs,
                          int32_t output_count) const noexcept override;
  int32_t onShapeChange(const nvinfer1::PluginTensorDesc* inputs, int32_t input_count,
                        const nvinfer1::PluginTensorDesc* outputs, int32_t output_count) noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* input_descs, const nvinfer1::PluginTensorDesc* output_descs,
                  const void* const* inputs, void* const* outputs, void* workspace,
                  cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 private:
  std::shared_ptr<const Node> node_;
};

class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit Creator(OperatorInfo info);
  Creator(const Creator&) = delete;
  Creator& operator=(const Creator&) = delete;

  // Null, with the reason in TensorRT's log, where an attribute is not allowed.
  nvinfer1::IPluginV3* createPlugin(const char* name, const nvinfer1::PluginFieldCollection* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  const char* getPluginName() const noexcept override { return info_.schema.name; }
  const char* getPluginVersion() const noexcept override { return "1"; }
  const char* getPluginNamespace() const noexcept override { return ""; }

 private:
  const OperatorInfo info_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_;
};

}  // namespace padfree
