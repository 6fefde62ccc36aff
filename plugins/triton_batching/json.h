// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace padfree {

// A JSON value, for reading and completing a model's configuration.
class Json {
 public:
  // Throws std::invalid_argument if the text is not JSON.
  static Json parse(std::string_view text);

  static Json object();
  static Json array();
  static Json string(std::string_view characters);
  static Json number(int64_t value);
  static Json literal(std::string_view literal_text);  // true, false, null

  // An object's member, or an empty value if there is none.
  const Json& operator[](std::string_view name) const;
  // An array's values; none for anything else.
  const std::vector<Json>& items() const { return items_; }
  // A string's characters; a number, true, false or null as written; "" for anything else.
  const std::string& text() const { return text_; }
  bool isObject() const { return kind_ == Kind::kObject; }
  // An object's members; none for anything else.
  const std::vector<std::pair<std::string, Json>>& members() const { return members_; }

  // Adds a member to an object, replacing one with that name.
  void set(std::string_view name, Json value);
  void append(Json value) { items_.push_back(std::move(value)); }
  // The value as JSON text.
  std::string toText() const;

 private:
  friend class JsonReader;

  enum class Kind { kLiteral, kString, kArray, kObject };  // kLiteral: a number, true, false or null

  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
  Kind kind_ = Kind::kLiteral;
};

}  // namespace padfree
