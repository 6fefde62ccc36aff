// SPDX-License-Identifier: Apache-2.0
// plugins/tokenizer for callers through ctypes.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

using padfree::Tokenizer;

// Null where the file is damaged; `reason` has room for 200 characters.
EXPORTED Tokenizer* tokenizer_open(const char* file, int64_t size, char* reason) {
  try {
    return new Tokenizer({file, static_cast<size_t>(size)});
  } catch (const std::invalid_argument& error) {
    std::strncpy(reason, error.what(), 199);
    return nullptr;
  }
}

EXPORTED void tokenizer_close(Tokenizer* tokenizer) {
  delete tokenizer;
}

// Ids and types of a text, or of a pair where second_size >= 0. Returns their count, which `capacity` may be too small
// for; -1: no UTF-8. `whole`: how many there would be without a limit.
EXPORTED int64_t tokenizer_encode(const Tokenizer* tokenizer, const char* first, int64_t first_size, const char* second,
                                  int64_t second_size, int64_t most, int32_t keeps_end, int32_t* ids, int32_t* types,
                                  int64_t capacity, int64_t* whole) {
  std::u32string texts[2];
  const bool is_pair = second_size >= 0;
  if (padfree::decodeUtf8({first, static_cast<size_t>(first_size)}, texts[0]) != padfree::kAllRead) return -1;
  if (is_pair && padfree::decodeUtf8({second, static_cast<size_t>(second_size)}, texts[1]) != padfree::kAllRead) {
    return -1;
  }
  const auto encoded = tokenizer->encode(texts[0], is_pair ? &texts[1] : nullptr, {most, keeps_end != 0});
  const auto count = static_cast<int64_t>(encoded.ids.size());
  std::copy_n(encoded.ids.begin(), std::min(count, capacity), ids);
  std::copy_n(encoded.types.begin(), std::min(count, capacity), types);
  *whole = encoded.whole;
  return count;
}
