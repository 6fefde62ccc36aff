// SPDX-License-Identifier: Apache-2.0
// Hostile files of compiled tokenizers, and texts of any bytes.
#include "tokenizer/tokenizer.h"

#include <stdexcept>

#include "input.h"
#include "tokenizer/utf8.h"

void feedTokenizer(Input input) {
  const std::string file = input.text();
  const padfree::TextLimit limit{input.byte(), input.byte() % 2 == 1};
  try {
    const padfree::Tokenizer tokenizer(file);
    while (!input.isEmpty()) {
      std::u32string first, second;
      const bool is_pair = input.byte() % 2 == 1;
      if (padfree::decodeUtf8(input.text(), first) != padfree::kAllRead) continue;
      if (padfree::decodeUtf8(input.text(), second) != padfree::kAllRead) continue;
      const auto encoded = tokenizer.encode(first, is_pair ? &second : nullptr, limit);
      if (encoded.ids.size() != encoded.types.size()) __builtin_trap();
    }
  } catch (const std::invalid_argument&) {
  }
}
