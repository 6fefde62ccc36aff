// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace padfree {

// A JSON value, for reading a model's configuration.
class Json {
 public:
  // Throws std::invalid_argument where the text is no JSON.
  static Json parse(std::string_view text);

  // An object's member, or an empty value where there is none.
  const Json& operator[](std::string_view name) const;
  // An array's values; none for anything else.
  const std::vector<Json>& items() const { return items_; }
  // A string's characters; a number, true, false or null as written; "" for anything else.
  const std::string& text() const { return text_; }
  bool isObject() const { return is_object_; }

 private:
  friend class JsonReader;

  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
  bool is_object_ = false;
};

}  // namespace padfree
