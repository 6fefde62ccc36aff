// SPDX-License-Identifier: Apache-2.0
// Any words and texts for the table of words, with results of exactly the size that they need, and of less.
#include <string>

#include "input.h"
#include "text/frames.h"

namespace {

// Words, until one is empty; a word's ids are its letters.
void addWords(padfree::WordTable& table, Input& input) {
  for (std::string word = input.text(); !word.empty(); word = input.text()) {
    const std::vector<int32_t> ids(word.begin(), word.end());
    table.add(word, ids.data(), ids.size());
    if (word == "clear") table.clear();
  }
}

}  // namespace

void feedText(Input input) {
  const uint8_t options = input.byte();
  padfree::WordTable table(options & 1);
  addWords(table, input);
  const int32_t segments = options & 2 ? 2 : 1;
  const std::vector<int32_t> frame{101, 102, 103, 104, 105};
  const std::vector<int32_t> frame_sizes{input.byte() % 3, input.byte() % 2, segments == 2 ? input.byte() % 3 : 0};
  const int32_t most = input.byte() - 1;
  std::string bytes;
  std::vector<int64_t> sizes;
  while (!input.isEmpty() || sizes.size() % segments != 0) {
    const std::string text = input.text();
    sizes.push_back(text == "left out" ? -1 : static_cast<int64_t>(text.size()));
    bytes += (bytes.empty() && sizes.size() == 1 ? "" : std::string(1, '\0')) + (sizes.back() < 0 ? "" : text);
  }
  const std::string exact(bytes.data(), bytes.size());  // so that reading on is seen
  std::vector<int32_t> counts(sizes.size() / segments);
  int64_t capacity = options >> 4;
  for (int round = 0; round < 2; ++round) {
    std::vector<int32_t> ids(capacity), types(capacity);
    const padfree::Request request{
        exact.data(), sizes.data(), static_cast<int32_t>(counts.size()),  segments, frame.data(), frame_sizes.data(),
        most,         ids.data(),   options & 4 ? types.data() : nullptr, capacity, counts.data()};
    const int64_t written = padfree::lookUpRows(table, request);
    if (written >= 0) break;
    capacity = -written;
  }
}
