// SPDX-License-Identifier: Apache-2.0
// What runtime/word_table.py calls through ctypes.
#include <exception>

#include "text/frames.h"

#define PADFREE_TEXT extern "C" __attribute__((visibility("default")))

using padfree::Request;
using padfree::WordTable;

namespace {

constexpr int64_t kOutOfMemory = INT64_MIN;

// Nothing throws into the caller.
template <typename Work>
int64_t guard(const Work& work) {
  try {
    return work();
  } catch (const std::exception&) {
    return kOutOfMemory;
  }
}

}  // namespace

PADFREE_TEXT void* padfree_words_create(int32_t lowercase) {
  WordTable* table = nullptr;
  guard([&] { return table = new WordTable(lowercase != 0), 0; });
  return table;
}

PADFREE_TEXT void padfree_words_destroy(void* table) {
  delete static_cast<WordTable*>(table);
}

PADFREE_TEXT int64_t padfree_words_add(void* table, const char* word, int64_t size, const int32_t* ids, int64_t count) {
  return guard([&] {
    static_cast<WordTable*>(table)->add({word, static_cast<size_t>(size)}, ids, static_cast<size_t>(count));
    return 0;
  });
}

PADFREE_TEXT int64_t padfree_words_clear(void* table) {
  return guard([&] { return static_cast<WordTable*>(table)->clear(), 0; });
}

PADFREE_TEXT int64_t padfree_words_look_up(const void* table, const Request* request) {
  return guard([&] { return padfree::lookUpRows(*static_cast<const WordTable*>(table), *request); });
}
