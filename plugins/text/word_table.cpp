// SPDX-License-Identifier: Apache-2.0
#include "text/word_table.h"

#include <array>
#include <cstring>
#include <mutex>

namespace padfree {
namespace {

enum Kind : uint8_t { kUnusualByte, kSpace, kMark, kLetter };

constexpr size_t kFirstSlots = 1 << 12;
constexpr uint64_t kSeed = 0xcbf29ce484222325;
constexpr uint64_t kFactor = 0x9ddfea08eb382d69;

constexpr bool isBetween(int byte, char first, char last) {
  return byte >= first && byte <= last;
}

constexpr Kind kindOf(int byte) {
  if (byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r') return kSpace;
  if (isBetween(byte, '0', '9') || isBetween(byte, 'a', 'z') || isBetween(byte, 'A', 'Z')) return kLetter;
  return isBetween(byte, '!', '~') ? kMark : kUnusualByte;
}

constexpr std::array<Kind, 256> makeKinds() {
  std::array<Kind, 256> kinds{};
  for (int byte = 0; byte < 256; ++byte) kinds[byte] = kindOf(byte);
  return kinds;
}

constexpr std::array<Kind, 256> kKinds = makeKinds();

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * kFactor;
  return hash ^ (hash >> 29);
}

uint64_t hashOf(const char* word, size_t size) {
  uint64_t hash = kSeed ^ size;
  uint64_t eight = 0;
  for (; size >= sizeof eight; size -= sizeof eight, word += sizeof eight) {
    std::memcpy(&eight, word, sizeof eight);
    hash = mix(hash, eight);
  }
  eight = 0;
  std::memcpy(&eight, word, size);
  hash = mix(mix(hash, eight), hash >> 32);
  return hash | 1;  // 0 marks an empty slot
}

}  // namespace

WordTable::WordTable(bool lowercase) : lowercase_(lowercase), slots_(kFirstSlots) {}

const WordTable::Slot* WordTable::find(uint64_t hash, const char* word, size_t size) const {
  const size_t mask = slots_.size() - 1;
  for (size_t position = hash >> 8 & mask;; position = (position + 1) & mask) {
    const Slot& slot = slots_[position];
    if (slot.hash == 0) return nullptr;
    if (slot.hash == hash && slot.word_size == size && std::memcmp(words_.data() + slot.word, word, size) == 0) {
      return &slot;
    }
  }
}

void WordTable::insertSlot(const Slot& slot) {
  const size_t mask = slots_.size() - 1;
  size_t position = slot.hash >> 8 & mask;
  while (slots_[position].hash != 0) position = (position + 1) & mask;
  slots_[position] = slot;
}

void WordTable::grow() {
  std::vector<Slot> before(slots_.size() * 2);
  before.swap(slots_);
  for (const Slot& slot : before) {
    if (slot.hash != 0) insertSlot(slot);
  }
}

void WordTable::add(std::string_view word, const int32_t* ids, size_t count) {
  const std::unique_lock lock(mutex_);
  const uint64_t hash = hashOf(word.data(), word.size());
  if (find(hash, word.data(), word.size()) != nullptr) return;
  if (2 * (count_ + 1) > slots_.size()) grow();  // at most half of the slots are taken
  insertSlot({hash, static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(word.size()),
              static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(count)});
  words_ += word;
  ids_.insert(ids_.end(), ids, ids + count);
  ++count_;
}

void WordTable::clear() {
  const std::unique_lock lock(mutex_);
  slots_.assign(kFirstSlots, Slot{});
  words_.clear();
  ids_.clear();
  count_ = 0;
}

int32_t WordTable::lookUp(std::string_view text, std::vector<int32_t>& ids) const {
  constexpr size_t kLongest = 64;  // LONGEST_WORD of runtime/word_pieces.py: longer ones are never added
  const size_t before = ids.size();
  const auto fail = [&](TextState state) {
    ids.resize(before);
    return static_cast<int32_t>(state);
  };
  bool has_new_word = false;
  char word[kLongest];
  for (size_t position = 0; position < text.size();) {
    const Kind kind = kKinds[static_cast<uint8_t>(text[position])];
    if (kind == kUnusualByte) return fail(TextState::kUnusual);
    if (kind == kSpace) {
      ++position;
      continue;
    }
    size_t size = 0;
    do {
      const char letter = text[position + size];
      const bool is_small = !lowercase_ || letter < 'A' || letter > 'Z';
      if (size < kLongest) word[size] = is_small ? letter : static_cast<char>(letter + ('a' - 'A'));
      ++size;
    } while (kind == kLetter && position + size < text.size() &&
             kKinds[static_cast<uint8_t>(text[position + size])] == kLetter);
    position += size;
    const Slot* slot = size <= kLongest ? find(hashOf(word, size), word, size) : nullptr;
    has_new_word = has_new_word || slot == nullptr;
    if (!has_new_word) ids.insert(ids.end(), ids_.begin() + slot->ids, ids_.begin() + slot->ids + slot->id_count);
  }
  return has_new_word ? fail(TextState::kNewWord) : static_cast<int32_t>(ids.size() - before);
}

}  // namespace padfree
