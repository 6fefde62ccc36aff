// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace padfree {

constexpr char32_t kLastCharacter = 0x10FFFF;
constexpr size_t kAllRead = std::string_view::npos;

// Appends the characters of `bytes`. Returns kAllRead, or the position of the first bytes that form no character.
size_t decodeUtf8(std::string_view bytes, std::u32string& characters);

}  // namespace padfree
