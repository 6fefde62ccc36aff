// SPDX-License-Identifier: Apache-2.0
// Attributes of operators: described once, then parsed, checked, listed to TensorRT and serialised from there.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "NvInferRuntime.h"

namespace padfree {

// What to do about an attribute that is refused: the end of a message.
constexpr const char* kAttributeNextStep =
    "; correct the node's attribute, or rewrite the model with 'padfree optimize'";

// One attribute. Every attribute must be given: there are no defaults. Only a later field is 0 in
// nodes and plans without it, and plans hold it only where it is not 0.
//
// A measured field is no attribute of a node: it is measured while an engine is built, serialised with the engine from
// then on, and empty until then. TensorRT's parser is not told of it.
struct FieldSpec {
  const char* name;
  nvinfer1::PluginFieldType type;                         // kINT32, kFLOAT32 or kCHAR
  int64_t minimum = std::numeric_limits<int32_t>::min();  // of integers
  int64_t maximum = std::numeric_limits<int32_t>::max();
  int64_t multiple_of = 1;                // of integers
  std::vector<std::string> choices = {};  // of strings
  bool measured = false;
  bool later = false;                                         // of integers
  float real_minimum = std::numeric_limits<float>::lowest();  // of floats
  float real_maximum = std::numeric_limits<float>::max();
};

FieldSpec flagField(const char* name);  // 0 or 1
FieldSpec laterFlagField(const char* name);
FieldSpec integerField(const char* name, int64_t minimum, int64_t maximum, int64_t multiple_of = 1);
FieldSpec realField(const char* name, float real_minimum = std::numeric_limits<float>::lowest(),
                    float real_maximum = std::numeric_limits<float>::max());
FieldSpec choiceField(const char* name, std::vector<std::string> choices);
FieldSpec measuredField(const char* name);  // any number of integers

// The checked values of one node. Does not change after construction and lends its memory to the serialised fields.
class Attributes {
 public:
  // Throws std::invalid_argument, naming the attribute, its value and what is allowed.
  Attributes(const std::vector<FieldSpec>& specs, const nvinfer1::PluginFieldCollection& fields);
  // The same attributes with what was measured: the values of the one measured field.
  Attributes(const Attributes& other, std::vector<int32_t> measured);
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  bool flag(const char* name) const { return integer(name) != 0; }
  int integer(const char* name) const { return value(name).integer; }
  float real(const char* name) const { return value(name).real; }
  const std::string& choice(const char* name) const { return value(name).choice; }
  const std::vector<int32_t>& measured(const char* name) const { return value(name).measured; }

  const nvinfer1::PluginFieldCollection* serialised() const { return &collection_; }
  // One of them as text: "mean", "1".
  std::string describe(const char* name) const { return describe(indexOf(name)); }
  // "mode=mean normalize=1"; exact: equal texts mean equal attributes. Without what was measured.
  std::string describe() const;

 private:
  struct Value {
    int32_t integer = 0;
    float real = 0;
    std::string choice;
    std::vector<int32_t> measured;
  };

  static Value parse(const FieldSpec& spec, const nvinfer1::PluginField& field);
  size_t indexOf(const char* name) const;  // the number of attributes where there is none with this name
  const Value& value(const char* name) const { return values_.at(indexOf(name)); }
  std::string describe(size_t index) const;
  void list();  // makes the serialised fields of the values

  const std::vector<FieldSpec>& specs_;
  std::vector<Value> values_;
  std::vector<nvinfer1::PluginField> serialised_;
  nvinfer1::PluginFieldCollection collection_;
};

}  // namespace padfree
