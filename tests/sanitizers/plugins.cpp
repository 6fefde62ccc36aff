// SPDX-License-Identifier: Apache-2.0
// Hostile fields for the creators, and hostile tensors for the plugins that they make. Counts and lengths are true, as
// TensorRT's are: who lies about those can make any C function read anything.
#include <algorithm>
#include <memory>

#include "NvInferRuntime.h"
#include "input.h"

extern "C" nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) noexcept;

namespace {

using namespace nvinfer1;

constexpr int kMostTensors = 24;

struct Field {
  std::string name;
  PluginFieldType type;
  Bytes data;
  int32_t length;
};

size_t sizeOf(PluginFieldType type) {
  switch (type) {
    case PluginFieldType::kFLOAT64:
    case PluginFieldType::kINT64:
      return 8;
    case PluginFieldType::kFLOAT32:
    case PluginFieldType::kINT32:
      return 4;
    case PluginFieldType::kFLOAT16:
    case PluginFieldType::kINT16:
    case PluginFieldType::kBF16:
      return 2;
    case PluginFieldType::kDIMS:
      return sizeof(Dims);
    default:
      return 1;
  }
}

Field readField(Input& input, const PluginFieldCollection& known) {
  Field field;
  const uint8_t which = input.byte();
  const int count = known.nbFields;
  field.name = which < count ? known.fields[which].name : input.text();
  field.type = static_cast<PluginFieldType>(input.byte());
  const uint8_t bytes = input.byte();
  field.data = input.bytes(bytes);
  field.length = static_cast<int32_t>(field.data.size() / sizeOf(field.type));
  if (bytes == 255) field.length = -static_cast<int32_t>(input.byte());
  return field;
}

Dims readDims(Input& input) {
  Dims dims{};
  dims.nbDims = std::min<int32_t>(input.byte(), Dims::MAX_DIMS);
  for (int32_t i = 0; i < dims.nbDims; ++i) {
    const uint8_t small = input.byte();
    dims.d[i] = small == 255 ? input.number() : small == 254 ? -1 : small;
  }
  return dims;
}

void feedTensors(Input& input, IPluginV3& plugin) {
  auto* build = static_cast<IPluginV3OneBuild*>(plugin.getCapabilityInterface(PluginCapabilityType::kBUILD));
  auto* runtime = static_cast<IPluginV3OneRuntime*>(plugin.getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  const int32_t inputs = input.byte() % kMostTensors;
  const int32_t outputs = (input.byte() % 4 == 0) ? input.byte() % kMostTensors : build->getNbOutputs();
  // Exactly as large as the counts say, so that the sanitizer sees what reads on.
  std::vector<PluginTensorDesc> descs(static_cast<size_t>(inputs + outputs));
  std::vector<DynamicPluginTensorDesc> dynamic(descs.size());
  std::vector<DataType> types(static_cast<size_t>(inputs)), made(static_cast<size_t>(outputs));
  for (size_t i = 0; i < descs.size(); ++i) {
    descs[i].type = static_cast<DataType>(input.byte() % 16);
    descs[i].format = static_cast<TensorFormat>(input.byte() % 4);
    descs[i].dims = readDims(input);
    dynamic[i] = {descs[i], descs[i].dims, descs[i].dims, descs[i].dims};
    if (i < types.size()) types[i] = descs[i].type;
  }
  build->getOutputDataTypes(made.data(), outputs, types.data(), inputs);
  for (int32_t i = 0; i < inputs + outputs; ++i) {
    build->supportsFormatCombination(i, dynamic.data(), inputs, outputs);
  }
  build->configurePlugin(dynamic.data(), inputs, dynamic.data() + inputs, outputs);
  if (runtime->onShapeChange(descs.data(), inputs, descs.data() + inputs, outputs) != 0) return;
  for (int32_t i = 0; i < inputs + outputs; ++i) {
    if (!build->supportsFormatCombination(i, dynamic.data(), inputs, outputs)) return;  // TensorRT runs no such node
  }
  const std::vector<const void*> sources(types.size());
  const std::vector<void*> targets(made.size());
  runtime->enqueue(descs.data(), descs.data() + inputs, sources.data(), targets.data(), nullptr, nullptr);
}

}  // namespace

void feedPlugin(Input input) {
  int32_t count = 0;
  IPluginCreatorInterface* const* creators = getCreators(count);
  auto* creator = static_cast<IPluginCreatorV3One*>(creators[input.byte() % count]);
  std::vector<Field> fields(input.byte() % 32);
  for (Field& field : fields) field = readField(input, *creator->getFieldNames());
  std::vector<PluginField> attributes;
  for (const Field& field : fields) {
    attributes.emplace_back(field.name.c_str(), field.data.empty() ? nullptr : field.data.data(), field.type,
                            field.length);
  }
  const PluginFieldCollection collection{static_cast<int32_t>(attributes.size()), attributes.data()};
  const std::string name = input.text();
  const std::unique_ptr<IPluginV3> plugin(creator->createPlugin(name.c_str(), &collection, TensorRTPhase::kBUILD));
  if (plugin == nullptr) return;
  const std::unique_ptr<IPluginV3> copy(plugin->clone());
  feedTensors(input, *copy);
  // What it would write into a plan is read again as it is.
  auto* runtime = static_cast<IPluginV3OneRuntime*>(copy->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  const std::unique_ptr<IPluginV3> again(
      creator->createPlugin(nullptr, runtime->getFieldsToSerialize(), TensorRTPhase::kRUNTIME));
  if (again == nullptr) __builtin_trap();
}
