// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/characters.h"

#include <algorithm>
#include <stdexcept>

#include "tokenizer/numbers.h"
#include "tokenizer/utf8.h"

namespace padfree {
namespace {

constexpr char32_t kGone = U'\0';  // a removed character, which still separates those that are reordered

}  // namespace

Characters::Characters(const Json& file) {
  setRanges(file["spaces"], static_cast<uint32_t>(Kind::kSpace));
  setRanges(file["marks"], static_cast<uint32_t>(Kind::kMark));
  setRanges(file["dropped"], kGoes << kActionShift);
  setRanges(file["spaced"], kStandsAlone << kActionShift);
  readRanks(file["ranks"]);
  readChanges(file["changed"]);
}

void Characters::set(char32_t c, uint32_t bits) {
  uint16_t& page = pages_[c / kPage];
  if (page == 0) {
    page = static_cast<uint16_t>(entries_.size() / kPage);
    entries_.resize(entries_.size() + kPage);
  }
  entries_[size_t{page} * kPage + c % kPage] |= bits;
}

void Characters::setRanges(const Json& ranges, uint32_t bits) {
  const auto& numbers = ranges.items();
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) {
    const auto first = readNumber(numbers[i], 0, kLastCharacter),
               last = readNumber(numbers[i + 1], first, kLastCharacter);
    for (int64_t c = first; c <= last; ++c) set(static_cast<char32_t>(c), bits);
  }
}

void Characters::readRanks(const Json& ranks) {
  const auto& numbers = ranks.items();
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) {
    const auto rank = static_cast<uint32_t>(readNumber(numbers[i + 1], 1, kMostRank));
    set(static_cast<char32_t>(readNumber(numbers[i], 0, kLastCharacter)), rank << kRankShift);
    has_ranks_ = true;
  }
}

void Characters::readChanges(const Json& changes) {
  for (const auto& [name, value] : changes.members()) {
    std::u32string c, string;
    const bool is_text = decodeUtf8(name, c) == kAllRead && decodeUtf8(value.text(), string) == kAllRead;
    if (!is_text || c.size() != 1 || strings_.size() >= UINT32_MAX >> kStringShift) {
      throw std::invalid_argument("a character that changes into no text");
    }
    set(c[0], kChanges << kActionShift | static_cast<uint32_t>(strings_.size()) << kStringShift);
    strings_.push_back(std::move(string));
  }
}

void Characters::normalize(std::u32string_view text, std::u32string& normalized) const {
  normalized.clear();
  bool may_be_unordered = false;
  for (const char32_t c : text) {
    const uint32_t entry = find(c);
    switch (entry >> kActionShift & 3) {
      case kStays:
        normalized += c;
        break;
      case kGoes:
        break;
      case kStandsAlone:
        normalized += {U' ', c, U' '};
        break;
      default:
        normalized += strings_[entry >> kStringShift];
    }
    may_be_unordered = may_be_unordered || entry >> kRankShift != 0;
  }
  if (may_be_unordered) reorder(normalized);
}

// Sorts runs of adjacent characters that have ranks by these: Unicode's canonical order.
void Characters::reorder(std::u32string& text) const {
  const auto has_rank = [this](char32_t c) { return rankOf(c) != 0; };
  for (auto at = text.begin(); has_ranks_ && at != text.end();) {
    const auto begin = std::find_if(at, text.end(), has_rank);
    at = std::find_if_not(begin, text.end(), has_rank);
    std::stable_sort(begin, at, [this](char32_t left, char32_t right) { return rankOf(left) < rankOf(right); });
  }
  text.erase(std::remove(text.begin(), text.end(), kGone), text.end());
}

}  // namespace padfree
