// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <stdexcept>

#include "tokenizer/numbers.h"
#include "tokenizer/utf8.h"

namespace padfree {
namespace {

constexpr const char* kFormat = "1";

Json readRoot(std::string_view file) {
  Json root = Json::parse(file);
  if (root["format"].text() != kFormat) {
    throw std::invalid_argument("format '" + root["format"].text().substr(0, 40) + "', allowed: " + kFormat);
  }
  return root;
}

std::u32string readText(const std::string& bytes) {
  std::u32string characters;
  if (decodeUtf8(bytes, characters) != kAllRead) throw std::invalid_argument("a token that is no UTF-8");
  return characters;
}

std::vector<int32_t> readIds(const Json& numbers) {
  std::vector<int32_t> ids;
  for (const Json& number : numbers.items()) ids.push_back(static_cast<int32_t>(readNumber(number, 0, INT32_MAX)));
  return ids;
}

// Limits how many tokens of each text stay, like the library's "longest_first": it shortens the longer text until both
// are equally long, then both.
void limitPair(size_t& first, size_t& second, size_t room) {
  if (first + second <= room) return;
  size_t shorter = std::min(first, second), longer = std::max(first, second);
  longer = shorter > room ? shorter : std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = shorter + room % 2;
  }
  const bool is_swapped = first > second;
  first = std::min(first, is_swapped ? longer : shorter);
  second = std::min(second, is_swapped ? shorter : longer);
}

void keep(std::vector<int32_t>& ids, size_t count, bool keeps_end) {
  if (count >= ids.size()) return;
  if (keeps_end) {
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(count));
  } else {
    ids.resize(count);
  }
}

}  // namespace

int64_t Tokenizer::Frame::size() const {
  size_t size = 0;
  for (const Part& part : parts) size += part.ids.size();
  return static_cast<int64_t>(size);
}

Tokenizer::Tokenizer(std::string_view file) : Tokenizer(readRoot(file)) {}

Tokenizer::Tokenizer(const Json& file)
    : characters_(file["characters"]),
      vocabulary_(readTokens(file["vocabulary"])),
      added_(readTokens(file["added"])),
      inside_(vocabulary_.after(readText(file["prefix"].text()))),
      unknown_(static_cast<int32_t>(readNumber(file["unknown"], 0, INT32_MAX))),
      longest_word_(static_cast<size_t>(readNumber(file["longest_word"], 0, INT32_MAX))),
      single_(readFrame(file["single"], 1)),
      pair_(readFrame(file["pair"], 2)) {}

TokenTree Tokenizer::readTokens(const Json& tokens) {
  TokenTree tree;
  for (const auto& [token, number] : tokens.members()) {
    const auto id = static_cast<int32_t>(readNumber(number, 0, INT32_MAX));
    tree.add(readText(token), id);
    if (id <= largest_id_) continue;
    largest_id_ = id;
    largest_token_ = token;
  }
  return tree;
}

Tokenizer::Frame Tokenizer::readFrame(const Json& frame, size_t texts) const {
  const auto &ids = frame["ids"].items(), &types = frame["types"].items();
  Frame found{{}, readIds(frame["text_types"])};
  bool fits = ids.size() == texts + 1 && types.size() == texts + 1 && found.text_types.size() == texts;
  for (size_t i = 0; fits && i < ids.size(); ++i) {
    found.parts.push_back({readIds(ids[i]), readIds(types[i])});
    fits = found.parts.back().ids.size() == found.parts.back().types.size();
  }
  if (!fits) throw std::invalid_argument("what stands around texts does not fit them");
  return found;
}

EncodedText Tokenizer::encode(std::u32string_view first, const std::u32string* second, TextLimit limit) const {
  const Frame& frame = second == nullptr ? single_ : pair_;
  std::vector<int32_t> texts[2];
  appendText(first, texts[0]);
  if (second != nullptr) appendText(*second, texts[1]);
  EncodedText encoded;
  encoded.whole = static_cast<int64_t>(texts[0].size() + texts[1].size()) + frame.size();
  const auto room = static_cast<size_t>(std::max<int64_t>(0, limit.most - frame.size()));
  size_t kept[2] = {texts[0].size(), texts[1].size()};
  limitPair(kept[0], kept[1], room);
  for (size_t i = 0; i < frame.parts.size(); ++i) {
    const Part& part = frame.parts[i];
    encoded.ids.insert(encoded.ids.end(), part.ids.begin(), part.ids.end());
    encoded.types.insert(encoded.types.end(), part.types.begin(), part.types.end());
    if (i == frame.text_types.size()) break;
    keep(texts[i], kept[i], limit.keeps_end);
    encoded.ids.insert(encoded.ids.end(), texts[i].begin(), texts[i].end());
    encoded.types.resize(encoded.ids.size(), frame.text_types[i]);
  }
  return encoded;
}

// Looks for added tokens first, which must match the text literally; the text between them is split into words.
void Tokenizer::appendText(std::u32string_view text, std::vector<int32_t>& ids) const {
  std::u32string buffer;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const TokenTree::Match match = added_.longest(text.substr(at));
    if (match.size == 0) {
      ++at;
      continue;
    }
    appendWords(text.substr(begin, at - begin), ids, buffer);
    ids.push_back(match.id);
    begin = at += match.size;
  }
  appendWords(text.substr(begin), ids, buffer);
}

void Tokenizer::appendWords(std::u32string_view text, std::vector<int32_t>& ids, std::u32string& buffer) const {
  using Kind = Characters::Kind;
  characters_.normalize(text, buffer);
  const std::u32string_view normalized = buffer;
  for (size_t at = 0; at < normalized.size();) {
    const size_t begin = at;
    const Kind kind = characters_.kindOf(normalized[at++]);
    while (kind == Kind::kLetter && at < normalized.size() && characters_.kindOf(normalized[at]) == kind) ++at;
    if (kind != Kind::kSpace) appendWord(normalized.substr(begin, at - begin), ids);
  }
}

void Tokenizer::appendWord(std::u32string_view word, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  bool is_known = word.size() <= longest_word_;
  for (size_t at = 0; is_known && at < word.size();) {
    const TokenTree::Match piece = vocabulary_.longest(word.substr(at), at == 0 ? TokenTree::kRoot : inside_);
    is_known = piece.size > 0;
    ids.push_back(piece.id);
    at += piece.size;
  }
  if (is_known) return;
  ids.resize(before);
  ids.push_back(unknown_);
}

}  // namespace padfree
