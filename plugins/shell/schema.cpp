// SPDX-License-Identifier: Apache-2.0
#include "shell/schema.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "common/text.h"

namespace padfree {
namespace {

using Letters = std::map<std::string, int64_t>;

// Evaluates a product or quotient of numbers and letters, from left to right. False if a letter has no value.
bool evaluateTerm(const std::string& term, const Letters& letters, int64_t& value) {
  value = 1;
  for (size_t begin = 0; begin <= term.size();) {
    const size_t end = std::min(term.find_first_of("*/", begin), term.size());
    const std::string factor = term.substr(begin, end - begin);
    const bool divides = begin > 0 && term[begin - 1] == '/';
    const auto letter = letters.find(factor);
    const bool is_number = !factor.empty() && factor.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number && letter == letters.end()) return false;
    const int64_t number = is_number ? std::stoll(factor) : letter->second;
    value = divides ? value / number : value * number;
    begin = end + 1;
  }
  return true;
}

// The notation, with numbers for axes whose size follows from attributes.
std::string withSizes(const std::string& notation, const Letters& letters) {
  std::vector<std::string> axes;
  std::istringstream inside(notation.substr(1, notation.size() - 2));
  for (std::string axis; std::getline(inside, axis, ',');) {
    int64_t sum = 0;
    bool has_value = true;
    std::istringstream terms(axis);
    for (std::string term; has_value && std::getline(terms, term, '+');) {
      int64_t value = 0;
      has_value = evaluateTerm(term, letters, value);
      sum += value;
    }
    axes.push_back(has_value ? text(sum) : axis);
  }
  return text('[', join(axes, ","), ']');
}

}  // namespace

bool Condition::holds(const Attributes& attributes) const {
  if (values.empty()) return attributes.integer(attribute) > 0;
  return std::find(values.begin(), values.end(), attributes.describe(attribute)) != values.end();
}

void OperatorSchema::check(const Attributes& attributes) const {
  for (const auto& [first, second] : requirements) {
    if (!first.holds(attributes) || second.holds(attributes)) continue;
    throwInvalid(first.attribute, " is ", attributes.describe(first.attribute), " with ", second.attribute, ' ',
                 attributes.describe(second.attribute), "; allowed: ", second.attribute, ' ',
                 second.values.empty() ? "above 0" : join(second.values, ", "),
                 "; change one of them, or rewrite the model with 'padfree optimize'");
  }
}

std::vector<Port> OperatorSchema::ports(const std::vector<TensorSchema>& tensors, const Attributes& attributes) const {
  Letters sizes;
  for (const AttributeLetter& letter : letters) sizes[letter.letter] = attributes.integer(letter.attribute);
  const auto holds = [&](const Condition& condition) { return condition.holds(attributes); };
  const bool half = std::any_of(in_half.begin(), in_half.end(), holds);
  std::vector<Port> ports;
  for (const TensorSchema& tensor : tensors) {
    if (!std::all_of(tensor.when.begin(), tensor.when.end(), holds)) continue;
    const TensorKind kind = half && tensor.kind == TensorKind::kActivation ? TensorKind::kHalf : tensor.kind;
    ports.push_back({tensor.name, kind, ShapeSpec(withSizes(tensor.shape, sizes))});
  }
  return ports;
}

}  // namespace padfree
