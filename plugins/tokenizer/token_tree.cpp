// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/token_tree.h"

namespace padfree {

// The slot of the key, or the free slot where it belongs.
size_t TokenTree::slotOf(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  uint64_t hash = key * 0x9ddfea08eb382d69;
  hash ^= hash >> 32;
  size_t at = hash & mask;
  while (slots_[at].node != kRoot && slots_[at].key != key) at = (at + 1) & mask;
  return at;
}

void TokenTree::grow() {
  std::vector<Slot> before(2 * slots_.size());
  before.swap(slots_);
  for (const Slot& slot : before) {
    if (slot.node != kRoot) slots_[slotOf(slot.key)] = slot;
  }
}

void TokenTree::add(std::u32string_view token, int32_t id) {
  uint32_t node = kRoot;
  for (const char32_t c : token) {
    uint32_t next = child(node, c);
    if (next == kRoot) {
      if (2 * ids_.size() >= slots_.size()) grow();  // at most half of the slots are taken
      next = static_cast<uint32_t>(ids_.size());
      ids_.push_back(-1);
      slots_[slotOf(keyOf(node, c))] = {keyOf(node, c), next};
    }
    node = next;
  }
  ids_[node] = id;
}

uint32_t TokenTree::after(std::u32string_view prefix) const {
  uint32_t node = kRoot;
  for (const char32_t c : prefix) {
    node = child(node, c);
    if (node == kRoot) return kNowhere;
  }
  return node;
}

TokenTree::Match TokenTree::longest(std::u32string_view text, uint32_t from) const {
  Match match;
  if (from == kNowhere) return match;
  uint32_t node = from;
  for (size_t at = 0; at < text.size(); ++at) {
    node = child(node, text[at]);
    if (node == kRoot) break;
    if (ids_[node] >= 0) match = {at + 1, ids_[node]};
  }
  return match;
}

}  // namespace padfree
