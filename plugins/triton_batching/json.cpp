// SPDX-License-Identifier: Apache-2.0
#include "triton_batching/json.h"

#include <stdexcept>

namespace padfree {
namespace {

std::string quote(const std::string& characters) {
  std::string text = "\"";
  for (const char c : characters) {
    if (c == '"' || c == '\\') {
      text += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr const char* kDigits = "0123456789abcdef";
      text += "\\u00";
      text += {kDigits[c >> 4], kDigits[c & 15]};
    } else {
      text += c;
    }
  }
  return text + "\"";
}

}  // namespace

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Json readAll() {
    Json value = readValue(0);
    if (peek() != kEnd) fail();
    return value;
  }

 private:
  static constexpr char kEnd = '\0';
  static constexpr int kDeepest = 100;  // far from overflowing the stack; configurations have about 5 levels

  [[noreturn]] void fail() const { throw std::invalid_argument("no JSON at character " + std::to_string(position_)); }

  char take() {
    if (position_ >= text_.size()) fail();
    return text_[position_++];
  }

  // The next character that is not white space.
  char peek() {
    while (position_ < text_.size() && std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos)
      ++position_;
    return position_ < text_.size() ? text_[position_] : kEnd;
  }

  bool skip(char expected) {
    if (peek() != expected) return false;
    ++position_;
    return true;
  }

  Json readValue(int depth) {
    if (depth > kDeepest) fail();
    Json value;
    if (skip('{')) {
      value.kind_ = Json::Kind::kObject;
      for (bool more = !skip('}'); more; more = !endOfList('}')) {
        if (!skip('"')) fail();
        std::string name = readString();
        if (!skip(':')) fail();
        value.members_.emplace_back(std::move(name), readValue(depth + 1));
      }
    } else if (skip('[')) {
      value.kind_ = Json::Kind::kArray;
      for (bool more = !skip(']'); more; more = !endOfList(']')) value.items_.push_back(readValue(depth + 1));
    } else if (skip('"')) {
      value.kind_ = Json::Kind::kString;
      value.text_ = readString();
    } else {
      while (peek() != kEnd && std::string_view(",:{}[]\"").find(text_[position_]) == std::string_view::npos) {
        value.text_ += take();
      }
      if (value.text_.empty()) fail();
    }
    return value;
  }

  // After a list's element: true at its end, false before the next one.
  bool endOfList(char end) {
    if (skip(',')) return false;
    if (!skip(end)) fail();
    return true;
  }

  // The rest of a string whose quotation mark has been read.
  std::string readString() {
    std::string characters;
    for (char c = take(); c != '"'; c = take()) {
      if (c == '\\') {
        readEscape(characters);
      } else {
        characters += c;
      }
    }
    return characters;
  }

  void readEscape(std::string& characters) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const char name = take();
    if (name == 'u') {
      appendUtf8(characters);
    } else if (const size_t i = kNames.find(name); i != std::string_view::npos) {
      characters += kMeanings[i];
    } else {
      fail();
    }
  }

  // Four hexadecimal digits, as UTF-8. (Surrogate pairs are not joined: no name that is compared contains any.)
  void appendUtf8(std::string& characters) {
    unsigned code = 0;
    for (int i = 0; i < 4; ++i) {
      const size_t digit = std::string_view("0123456789abcdef").find(static_cast<char>(take() | 0x20));
      if (digit == std::string_view::npos) fail();
      code = 16 * code + static_cast<unsigned>(digit);
    }
    if (code < 0x80) {
      characters += static_cast<char>(code);
    } else if (code < 0x800) {
      characters += static_cast<char>(0xC0 | (code >> 6));
      characters += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      characters += static_cast<char>(0xE0 | (code >> 12));
      characters += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
      characters += static_cast<char>(0x80 | (code & 0x3F));
    }
  }

  std::string_view text_;
  size_t position_ = 0;
};

Json Json::parse(std::string_view text) {
  return JsonReader(text).readAll();
}

Json Json::object() {
  Json value;
  value.kind_ = Kind::kObject;
  return value;
}

Json Json::array() {
  Json value;
  value.kind_ = Kind::kArray;
  return value;
}

Json Json::string(std::string_view characters) {
  Json value = literal(characters);
  value.kind_ = Kind::kString;
  return value;
}

Json Json::number(int64_t value) {
  return literal(std::to_string(value));
}

Json Json::literal(std::string_view literal_text) {
  Json value;
  value.text_ = literal_text;
  return value;
}

void Json::set(std::string_view name, Json value) {
  for (auto& [key, present] : members_) {
    if (key == name) {
      present = std::move(value);
      return;
    }
  }
  members_.emplace_back(name, std::move(value));
}

std::string Json::toText() const {
  std::string text;
  switch (kind_) {
    case Kind::kLiteral:
      return text_;
    case Kind::kString:
      return quote(text_);
    case Kind::kArray:
      for (const Json& item : items_) text += (text.empty() ? "" : ",") + item.toText();
      return "[" + text + "]";
    case Kind::kObject:
      for (const auto& [name, value] : members_) {
        text += (text.empty() ? "" : ",") + quote(name) + ":" + value.toText();
      }
      return "{" + text + "}";
  }
  return text;
}

const Json& Json::operator[](std::string_view name) const {
  static const Json kNone;
  for (const auto& [key, value] : members_) {
    if (key == name) return value;
  }
  return kNone;
}

}  // namespace padfree
