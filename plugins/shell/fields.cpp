// SPDX-License-Identifier: Apache-2.0
#include "shell/fields.h"

#include <algorithm>
#include <cstring>
#include <iomanip>

#include "common/text.h"

namespace padfree {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

std::string nameOf(PluginFieldType type) {
  switch (type) {
    case PluginFieldType::kINT32:
      return "INT32";
    case PluginFieldType::kFLOAT32:
      return "FLOAT32";
    case PluginFieldType::kCHAR:
      return "CHAR";
    default:
      return text("field type ", static_cast<int32_t>(type));
  }
}

std::string allowedValues(const FieldSpec& spec) {
  if (spec.type == PluginFieldType::kCHAR) return join(spec.choices, ", ");
  if (spec.type == PluginFieldType::kFLOAT32) {
    if (spec.real_maximum < std::numeric_limits<float>::max())
      return text("from ", spec.real_minimum, " to ", spec.real_maximum);
    return spec.real_minimum == 0 ? "finite, at least 0" : "finite";
  }
  std::string range = text(spec.minimum, " to ", spec.maximum);
  return spec.multiple_of == 1 ? range : text(range, ", multiples of ", spec.multiple_of);
}

template <class Text>
[[noreturn]] void refuse(const FieldSpec& spec, const Text& value_text) {
  throwInvalid("attribute ", spec.name, " is ", value_text, "; allowed: ", allowedValues(spec), kAttributeNextStep);
}

std::string allNames(const std::vector<FieldSpec>& specs) {
  std::vector<std::string> names;
  for (const FieldSpec& spec : specs) {
    if (!spec.measured) names.emplace_back(spec.name);
  }
  return names.empty() ? "none" : join(names, ", ");
}

}  // namespace

FieldSpec flagField(const char* name) {
  return integerField(name, 0, 1);
}

FieldSpec laterFlagField(const char* name) {
  FieldSpec spec = flagField(name);
  spec.later = true;
  return spec;
}

FieldSpec integerField(const char* name, int64_t minimum, int64_t maximum, int64_t multiple_of) {
  return {name, PluginFieldType::kINT32, minimum, maximum, multiple_of, {}};
}

FieldSpec realField(const char* name, float real_minimum, float real_maximum) {
  FieldSpec spec{name, PluginFieldType::kFLOAT32};
  spec.real_minimum = real_minimum;
  spec.real_maximum = real_maximum;
  return spec;
}

FieldSpec measuredField(const char* name) {
  FieldSpec spec{name, PluginFieldType::kINT32};
  spec.measured = true;
  return spec;
}

FieldSpec choiceField(const char* name, std::vector<std::string> choices) {
  FieldSpec spec{name, PluginFieldType::kCHAR};
  spec.choices = std::move(choices);
  return spec;
}

Attributes::Attributes(const std::vector<FieldSpec>& specs, const PluginFieldCollection& fields)
    : specs_(specs), values_(specs.size()) {
  std::vector<bool> is_given(specs.size(), false);
  for (int32_t i = 0; i < fields.nbFields; ++i) {
    const PluginField& field = fields.fields[i];
    const char* name = field.name == nullptr ? "" : field.name;
    const size_t k = indexOf(name);
    if (k == specs.size()) {
      throwInvalid("attribute ", name, " is unknown; allowed: ", allNames(specs), kAttributeNextStep);
    }
    if (is_given[k]) throwInvalid("attribute ", name, " is given twice; give it once");
    is_given[k] = true;
    values_[k] = parse(specs[k], field);
  }
  for (size_t k = 0; k < specs.size(); ++k) {
    if (!is_given[k] && !specs[k].measured && !specs[k].later) refuse(specs[k], "missing");
  }
  list();
}

Attributes::Attributes(const Attributes& other, std::vector<int32_t> measured)
    : specs_(other.specs_), values_(other.values_) {
  for (size_t k = 0; k < specs_.size(); ++k) {
    if (specs_[k].measured) values_[k].measured = std::move(measured);
  }
  list();
}

void Attributes::list() {
  serialised_.reserve(specs_.size() + 1);  // never a null pointer, even without attributes
  for (size_t k = 0; k < specs_.size(); ++k) {
    const FieldSpec& spec = specs_[k];
    const Value& value = values_[k];
    if (spec.later && value.integer == 0) continue;
    if (spec.measured) {
      const auto length = static_cast<int32_t>(value.measured.size());
      if (length > 0) serialised_.emplace_back(spec.name, value.measured.data(), spec.type, length);
    } else if (spec.type == PluginFieldType::kINT32) {
      serialised_.emplace_back(spec.name, &value.integer, spec.type, 1);
    } else if (spec.type == PluginFieldType::kFLOAT32) {
      serialised_.emplace_back(spec.name, &value.real, spec.type, 1);
    } else {
      serialised_.emplace_back(spec.name, value.choice.data(), spec.type, static_cast<int32_t>(value.choice.size()));
    }
  }
  collection_ = {static_cast<int32_t>(serialised_.size()), serialised_.data()};
}

Attributes::Value Attributes::parse(const FieldSpec& spec, const PluginField& field) {
  if (field.type != spec.type) {
    throwInvalid("attribute ", spec.name, " has type ", nameOf(field.type), "; allowed: ", nameOf(spec.type),
                 kAttributeNextStep);
  }
  if (spec.measured) {
    Value value;
    value.measured.resize(field.data == nullptr ? 0 : static_cast<size_t>(std::max(field.length, 0)));
    if (!value.measured.empty())
      std::memcpy(value.measured.data(), field.data, value.measured.size() * sizeof(int32_t));
    return value;
  }
  const bool is_text = spec.type == PluginFieldType::kCHAR;
  if (field.data == nullptr || field.length < 1 || (!is_text && field.length != 1)) {
    throwInvalid("attribute ", spec.name, " has ", field.data == nullptr ? 0 : field.length,
                 " values; allowed: ", is_text ? allowedValues(spec) : "one value", kAttributeNextStep);
  }
  Value value;
  if (is_text) {
    const char* data = static_cast<const char*>(field.data);
    value.choice.assign(data, strnlen(data, static_cast<size_t>(field.length)));  // some callers count the final zero
    const auto& choices = spec.choices;
    if (std::find(choices.begin(), choices.end(), value.choice) == choices.end())
      refuse(spec, text('"', value.choice, '"'));
  } else if (spec.type == PluginFieldType::kFLOAT32) {
    std::memcpy(&value.real, field.data, sizeof(value.real));  // memcpy: a plan's bytes need not be aligned
    if (!(value.real >= spec.real_minimum && value.real <= spec.real_maximum)) refuse(spec, value.real);
  } else {
    std::memcpy(&value.integer, field.data, sizeof(value.integer));
    const bool in_range = value.integer >= spec.minimum && value.integer <= spec.maximum;
    if (!in_range || value.integer % spec.multiple_of != 0) refuse(spec, value.integer);
  }
  return value;
}

size_t Attributes::indexOf(const char* name) const {
  size_t k = 0;
  while (k < specs_.size() && std::strcmp(specs_[k].name, name) != 0) ++k;
  return k;
}

std::string Attributes::describe(size_t index) const {
  const Value& value = values_.at(index);
  if (specs_[index].type == PluginFieldType::kCHAR) return value.choice;
  if (specs_[index].type == PluginFieldType::kINT32) return text(value.integer);
  return text(std::setprecision(9), value.real);  // 9 digits tell floats apart
}

std::string Attributes::describe() const {
  std::vector<std::string> parts;
  for (size_t k = 0; k < specs_.size(); ++k) {
    const bool is_told = !specs_[k].measured && (!specs_[k].later || values_[k].integer != 0);
    if (is_told) parts.push_back(text(specs_[k].name, "=", describe(k)));
  }
  return join(parts, " ");
}

}  // namespace padfree
