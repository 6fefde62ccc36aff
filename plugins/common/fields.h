// SPDX-License-Identifier: Apache-2.0
// Attributes of operators: described once, then parsed, checked, listed to TensorRT and serialised from there.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "NvInferRuntime.h"

namespace padfree {

// One attribute. Every attribute must be given: there are no defaults.
struct FieldSpec {
  const char* name;
  nvinfer1::PluginFieldType type;                         // kINT32, kFLOAT32 or kCHAR
  int64_t minimum = std::numeric_limits<int32_t>::min();  // of numbers
  int64_t maximum = std::numeric_limits<int32_t>::max();  // of integers; floats need only be finite
  int64_t multiple_of = 1;                                // of integers
  std::vector<std::string> choices = {};                  // of strings
};

FieldSpec flagField(const char* name);  // 0 or 1
FieldSpec integerField(const char* name, int64_t minimum, int64_t maximum, int64_t multiple_of = 1);
FieldSpec realField(const char* name);             // any finite number
FieldSpec nonNegativeRealField(const char* name);  // finite, at least 0
FieldSpec choiceField(const char* name, std::vector<std::string> choices);

// The checked values of one node. Does not change after construction and lends its memory to the serialised fields.
class Attributes {
 public:
  // Throws std::invalid_argument, naming the attribute, its value and what is allowed.
  Attributes(const std::vector<FieldSpec>& specs, const nvinfer1::PluginFieldCollection& fields);
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  bool flag(const char* name) const { return integer(name) != 0; }
  int integer(const char* name) const;
  float real(const char* name) const;
  const std::string& choice(const char* name) const;

  const nvinfer1::PluginFieldCollection* serialised() const { return &collection_; }
  std::string describe() const;  // "mode=mean normalize=1"; exact: equal texts mean equal attributes

 private:
  struct Value {
    int32_t integer = 0;
    float real = 0;
    std::string choice;
  };

  static Value parse(const FieldSpec& spec, const nvinfer1::PluginField& field);
  const Value& value(const char* name) const;

  const std::vector<FieldSpec>& specs_;
  std::vector<Value> values_;
  std::vector<nvinfer1::PluginField> serialised_;
  nvinfer1::PluginFieldCollection collection_;
};

}  // namespace padfree
