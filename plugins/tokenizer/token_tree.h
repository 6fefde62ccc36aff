// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace padfree {

// A tree of tokens by their characters. Finding the longest token at a position takes at most as many steps as the
// longest token has characters, whatever the text is.
class TokenTree {
 public:
  static constexpr uint32_t kRoot = 0, kNowhere = UINT32_MAX;

  struct Match {
    size_t size = 0;  // characters; 0: no token begins there
    int32_t id = -1;
  };

  void add(std::u32string_view token, int32_t id);

  // The node at which tokens that begin with `prefix` go on; kNowhere: there are none.
  uint32_t after(std::u32string_view prefix) const;
  // The longest token, of one or more characters, with which `text` begins, among those that go on at the node `from`.
  Match longest(std::u32string_view text, uint32_t from = kRoot) const;

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t node = kRoot;  // kRoot marks an empty slot: the root is no node's child
  };

  static uint64_t keyOf(uint32_t node, char32_t c) { return uint64_t{node} << 21 | c; }
  size_t slotOf(uint64_t key) const;
  uint32_t child(uint32_t node, char32_t c) const { return slots_[slotOf(keyOf(node, c))].node; }
  void grow();

  std::vector<Slot> slots_ = std::vector<Slot>(1 << 8);
  std::vector<int32_t> ids_ = {-1};  // one per node; -1: no token ends there
};

}  // namespace padfree
