// SPDX-License-Identifier: Apache-2.0
// Operators as schemas.h describes them, and the ports that a node's attributes give it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shell/fields.h"
#include "shell/shape.h"

namespace padfree {

enum class TensorKind {  // signature.cpp has a table in this order
  kInt32,
  kFloat,       // fp32, whatever the activations are
  kActivation,  // fp32, fp16 or bf16: the same type for all of a node's tensors of this kind
  kHalf,        // as kActivation, without fp32
  kElement,     // as kActivation, or int32
  kE4m3,        // float8e4m3fn, whatever the activations are
  kInt8,        // int8, whatever the activations are
};

struct Port {
  const char* name;
  TensorKind kind;
  ShapeSpec shape;
};

// Holds where an attribute has one of these values or, without any, is a positive number.
struct Condition {
  const char* attribute;
  std::vector<std::string> values;

  bool holds(const Attributes& attributes) const;
};

// Of a flag.
inline Condition isSet(const char* attribute) {
  return {attribute, {"1"}};
}

// One input or output, which is present where all of its conditions hold.
struct TensorSchema {
  const char* name;
  TensorKind kind;
  const char* shape;  // in letters, those of attributes as well: "[T,H*D]"
  std::vector<Condition> when;
};

inline TensorSchema int32Tensor(const char* name, const char* shape, std::vector<Condition> when = {}) {
  return {name, TensorKind::kInt32, shape, std::move(when)};
}
inline TensorSchema floatTensor(const char* name, const char* shape, std::vector<Condition> when = {}) {
  return {name, TensorKind::kFloat, shape, std::move(when)};
}
inline TensorSchema activationTensor(const char* name, const char* shape, std::vector<Condition> when = {}) {
  return {name, TensorKind::kActivation, shape, std::move(when)};
}
inline TensorSchema elementTensor(const char* name, const char* shape, std::vector<Condition> when = {}) {
  return {name, TensorKind::kElement, shape, std::move(when)};
}
inline TensorSchema e4m3Tensor(const char* name, const char* shape, std::vector<Condition> when = {}) {
  return {name, TensorKind::kE4m3, shape, std::move(when)};
}
inline TensorSchema int8Tensor(const char* name, const char* shape, std::vector<Condition> when = {}) {
  return {name, TensorKind::kInt8, shape, std::move(when)};
}

// Where the first holds the second must hold, too.
struct Requirement {
  Condition first, second;
};

// The letter that stands for an integer attribute in shapes.
struct AttributeLetter {
  const char* letter;
  const char* attribute;
};

struct OperatorSchema {
  const char* name;
  std::vector<FieldSpec> fields;
  std::vector<TensorSchema> inputs, outputs;
  std::vector<Requirement> requirements;
  std::vector<Condition> in_half;  // where one holds, activations are fp16 or bf16
  std::vector<AttributeLetter> letters;

  // Throws std::invalid_argument, naming two attributes that do not go together.
  void check(const Attributes& attributes) const;
  // The ports of these inputs or outputs, in order.
  std::vector<Port> ports(const std::vector<TensorSchema>& tensors, const Attributes& attributes) const;
};

}  // namespace padfree
