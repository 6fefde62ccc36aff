// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/utf8.h"

#include <cstdint>

namespace padfree {
namespace {

struct Form {
  size_t size;       // bytes of the character; 0: no character begins this way
  char32_t least;    // smaller characters must use a shorter form
  char32_t payload;  // the bits of the first byte that belong to the character
};

Form formOf(uint8_t first) {
  if (first < 0x80) return {1, 0, first};
  if (first < 0xC0) return {0, 0, 0};
  if (first < 0xE0) return {2, 0x80, first & 0x1Fu};
  if (first < 0xF0) return {3, 0x800, first & 0x0Fu};
  if (first < 0xF8) return {4, 0x10000, first & 0x07u};
  return {0, 0, 0};
}

bool isSurrogate(char32_t c) {
  return c >= 0xD800 && c <= 0xDFFF;
}

}  // namespace

size_t decodeUtf8(std::string_view bytes, std::u32string& characters) {
  characters.reserve(characters.size() + bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Form form = formOf(static_cast<uint8_t>(bytes[at]));
    if (form.size == 0 || form.size > bytes.size() - at) return at;
    char32_t c = form.payload;
    for (size_t i = 1; i < form.size; ++i) {
      const auto next = static_cast<uint8_t>(bytes[at + i]);
      if ((next & 0xC0) != 0x80) return at;
      c = c << 6 | (next & 0x3Fu);
    }
    if (c < form.least || c > kLastCharacter || isSurrogate(c)) return at;
    characters += c;
    at += form.size;
  }
  return kAllRead;
}

}  // namespace padfree
