// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "triton_batching/json.h"

namespace padfree {

// What becomes of characters before words are looked up. The file says how the tokenizers library treats them:
// builder/triton/compiled_tokenizer.py asks it about each.
class Characters {
 public:
  enum class Kind : uint8_t { kLetter, kSpace, kMark };  // marks are words of their own

  // Throws std::invalid_argument if the file is not of this form.
  explicit Characters(const Json& file);

  // Writes what becomes of a text to `normalized`.
  void normalize(std::u32string_view text, std::u32string& normalized) const;
  Kind kindOf(char32_t c) const { return static_cast<Kind>(find(c) & 3); }

 private:
  // A character's entry holds, from the lowest bits on: its kind, its action, its rank, the string that it turns into.
  enum Action : uint32_t { kStays, kGoes, kStandsAlone, kChanges };
  static constexpr uint32_t kActionShift = 2, kRankShift = 4, kStringShift = 14;
  static constexpr uint32_t kMostRank = (1u << (kStringShift - kRankShift)) - 1;
  static constexpr size_t kPage = 256, kPages = (0x10FFFF + 1) / kPage;

  uint32_t find(char32_t c) const { return entries_[size_t{pages_[c / kPage]} * kPage + c % kPage]; }
  uint32_t rankOf(char32_t c) const { return find(c) >> kRankShift & kMostRank; }
  void set(char32_t c, uint32_t bits);
  void setRanges(const Json& ranges, uint32_t bits);
  void readRanks(const Json& ranks);
  void readChanges(const Json& changes);
  void reorder(std::u32string& text) const;

  std::array<uint16_t, kPages> pages_{};
  std::vector<uint32_t> entries_ = std::vector<uint32_t>(kPage);  // page 0: characters that the file does not mention
  std::vector<std::u32string> strings_;
  bool has_ranks_ = false;
};

}  // namespace padfree
