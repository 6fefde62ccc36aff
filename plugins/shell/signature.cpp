// SPDX-License-Identifier: Apache-2.0
#include "shell/signature.h"

#include <algorithm>

#include "common/text.h"

namespace padfree {
namespace {

using nvinfer1::DimensionOperation;

std::string namesOf(const std::vector<Port>& ports) {
  std::vector<std::string> names;
  for (const Port& port : ports) names.emplace_back(port.name);
  return join(names, ", ");
}

std::string nameOf(nvinfer1::DataType type) {
  static constexpr const char* kNames[] = {"FP32", "FP16", "INT8",  "INT32", "BOOL", "UINT8",
                                           "FP8",  "BF16", "INT64", "INT4",  "FP4",  "E8M0"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : text("type ", index);
}

// The types that tensors of a kind may have.
const std::vector<nvinfer1::DataType>& typesOf(TensorKind kind) {
  using Type = nvinfer1::DataType;
  static const std::vector<Type> kTypes[] = {{Type::kINT32},
                                             {Type::kFLOAT},
                                             {Type::kFLOAT, Type::kHALF, Type::kBF16},
                                             {Type::kHALF, Type::kBF16},
                                             {Type::kFLOAT, Type::kHALF, Type::kBF16, Type::kINT32},
                                             {Type::kFP8},
                                             {Type::kINT8}};
  return kTypes[static_cast<size_t>(kind)];
}

bool allows(TensorKind kind, nvinfer1::DataType type) {
  const auto& types = typesOf(kind);
  return std::find(types.begin(), types.end(), type) != types.end();
}

std::string allowedTypes(TensorKind kind) {
  std::vector<std::string> names;
  for (const nvinfer1::DataType type : typesOf(kind)) names.push_back(nameOf(type));
  return join(names, ", ");
}

bool hasFixedType(TensorKind kind) {
  return typesOf(kind).size() == 1;
}

// The input that decides the type of all activations, kAbsent where there is none.
int leadingInput(const Operator& op) {
  for (size_t i = 0; i < op.inputs().size(); ++i) {
    if (!hasFixedType(op.inputs()[i].kind)) return static_cast<int>(i);
  }
  return kAbsent;
}

}  // namespace

void checkCounts(const Operator& op, int32_t input_count, int32_t output_count) {
  const auto check = [](const char* what, int32_t count, const std::vector<Port>& ports) {
    if (count == static_cast<int32_t>(ports.size())) return;
    throwInvalid("the node has ", count, ' ', what, "; allowed with its attributes: ", ports.size(), " (",
                 namesOf(ports), "); make the has_... attributes and the list agree");
  };
  check("inputs", input_count, op.inputs());
  check("outputs", output_count, op.outputs());
}

std::vector<nvinfer1::DataType> outputTypes(const Operator& op, const nvinfer1::DataType* input_types) {
  const int leading = leadingInput(op);
  for (size_t i = 0; i < op.inputs().size(); ++i) {
    const Port& port = op.inputs()[i];
    if (!allows(port.kind, input_types[i])) {
      throwInvalid("input ", port.name, " has type ", nameOf(input_types[i]), "; allowed: ", allowedTypes(port.kind),
                   "; cast it in the graph");
    }
    if (!hasFixedType(port.kind) && input_types[i] != input_types[leading]) {
      throwInvalid("input ", port.name, " has type ", nameOf(input_types[i]),
                   "; allowed: ", nameOf(input_types[leading]), " as input ", op.inputs()[leading].name,
                   "; cast it in the graph");
    }
  }
  std::vector<nvinfer1::DataType> types;
  for (const Port& port : op.outputs()) {
    const bool follows = !hasFixedType(port.kind) && leading != kAbsent;
    types.push_back(follows ? input_types[leading] : typesOf(port.kind).front());
  }
  return types;
}

std::string describeInputs(const Operator& op, const nvinfer1::PluginTensorDesc* inputs) {
  std::vector<std::string> descriptions;
  for (size_t i = 0; i < op.inputs().size(); ++i) {
    descriptions.push_back(text(op.inputs()[i].name, ' ', describe(inputs[i].dims), ' ', nameOf(inputs[i].type)));
  }
  return join(descriptions, ", ");
}

bool supportsTensor(const Operator& op, int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors) {
  const auto input_count = static_cast<int32_t>(op.inputs().size());
  const Port& port = position < input_count ? op.inputs()[position] : op.outputs()[position - input_count];
  const nvinfer1::PluginTensorDesc& desc = tensors[position].desc;
  if (desc.format != nvinfer1::TensorFormat::kLINEAR || !allows(port.kind, desc.type)) return false;
  if (hasFixedType(port.kind)) return true;
  const int leading = leadingInput(op);
  return position <= leading || desc.type == tensors[leading].desc.type;
}

Sizes checkShapes(const Operator& op, const std::function<nvinfer1::Dims(int32_t)>& input_shape) {
  Sizes sizes;
  for (size_t i = 0; i < op.inputs().size(); ++i) {
    sizes.bind(op.inputs()[i].name, op.inputs()[i].shape, input_shape(static_cast<int32_t>(i)));
  }
  op.checkSizes(sizes);
  return sizes;
}

std::vector<nvinfer1::DimsExprs> outputShapes(const Operator& op, const nvinfer1::DimsExprs* inputs,
                                              nvinfer1::IExprBuilder& builder) {
  const Sizes sizes = checkShapes(op, [inputs](int32_t i) {
    nvinfer1::Dims dims{};
    dims.nbDims = inputs[i].nbDims;
    for (int32_t k = 0; k < dims.nbDims; ++k) {
      dims.d[k] = inputs[i].d[k]->isConstant() ? inputs[i].d[k]->getConstantValue() : -1;
    }
    return dims;
  });
  SizeExpressions expressions(builder);
  for (size_t i = 0; i < op.inputs().size(); ++i) expressions.bind(op.inputs()[i].shape, inputs[i]);
  if (const CountedSize* counted_size = op.countedSize()) {
    const nvinfer1::IDimensionExpr& bound = expressions.product(counted_size->bounds);
    // Half full is what TensorRT tunes for: about the mean of real batches, whose lengths spread over [0.2, 1] S.
    const auto* half = builder.operation(DimensionOperation::kCEIL_DIV, bound, *builder.constant(2));
    const auto* size = builder.declareSizeTensor(counted_size->output, *half, bound);
    if (size == nullptr) throwInvalid("TensorRT refused the size tensor; check the mask's type and shape");
    expressions.set(counted_size->symbol, *size);
  }
  op.deriveSizes(expressions);
  std::vector<nvinfer1::DimsExprs> shapes;
  for (const Port& port : op.outputs()) shapes.push_back(expressions.build(port.shape, sizes.groupRank()));
  return shapes;
}

}  // namespace padfree
