// SPDX-License-Identifier: Apache-2.0
// Words and the ids of their pieces, and plain texts cut into words: the compiled half of runtime/word_pieces.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

namespace padfree {

// What became of a text.
enum class TextState : int32_t {
  kUnusual = -1,  // has characters that are not cut here
  kNewWord = -2,  // has a word that is not in the table
  kTooLong = -3,  // has more tokens than allowed
};

// Threads may share one.
class WordTable {
 public:
  // `lowercase`: letters A to Z are taken for small ones in the texts.
  explicit WordTable(bool lowercase);

  // Adds a word as a text in small letters has it; a word that is in the table already stays as it is.
  void add(std::string_view word, const int32_t* ids, size_t count);

  // Forgets all words.
  void clear();

  // Appends the ids of a text's pieces to `ids`. Returns how many, or a TextState and has appended nothing.
  int32_t lookUp(std::string_view text, std::vector<int32_t>& ids) const;

  // Taken for as long as lookUp is called; add and clear wait for it.
  std::shared_lock<std::shared_mutex> reading() const { return std::shared_lock(mutex_); }

 private:
  struct Slot {
    uint64_t hash = 0;  // 0: empty
    uint32_t word = 0, word_size = 0;
    uint32_t ids = 0, id_count = 0;
  };

  const Slot* find(uint64_t hash, const char* word, size_t size) const;
  void insertSlot(const Slot& slot);
  void grow();

  bool lowercase_;
  mutable std::shared_mutex mutex_;
  std::vector<Slot> slots_;
  size_t count_ = 0;
  std::string words_;
  std::vector<int32_t> ids_;
};

}  // namespace padfree
