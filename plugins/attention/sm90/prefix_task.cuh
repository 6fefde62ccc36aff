// SPDX-License-Identifier: Apache-2.0
// How a block of the Hopper kernel for shared prefixes is laid out, and which rows and keys it works on.
#pragma once

#include "attention/prefix.cuh"
#include "attention/query_tiles.cuh"
#include "attention/sm90/maps.cuh"
#include "attention/sm90/positions.cuh"

namespace padfree {

// kGroups warpgroups that compute and one that loads.
template <typename Element, int kHeadSize>
struct PrefixShape : Sm90Tiles<Element, kHeadSize, kTaskRows> {
  using Tiles = Sm90Tiles<Element, kHeadSize, kTaskRows>;
  static constexpr PositionMode kPositionMode = PositionMode::kWindow;
  static constexpr bool kWide = kHeadSize > 128;  // the output alone takes half of a warpgroup's registers
  static constexpr int kGroups = kWide ? 2 : 3, kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int kQuerySlots = kWide ? 1 : 2;  // with two the next task's Q arrives while this one is computed
  static constexpr int kSlots = kWide ? 5 : 8;       // K and V of a step take a slot each, in turn
  static constexpr int kAllQueryBytes = kQuerySlots * kGroups * Tiles::kQueryBytes;
  static constexpr int kSharedBytes = kAllQueryBytes + kSlots * Tiles::kKeyBytes + 1024;  // the last to align
  // Registers after the loading warpgroup gave its own away; 512 threads start with 128 each, 384 with 168.
  static constexpr int kComputeRegisters = kWide ? 224 : 152, kProducerRegisters = 56;
  // Query rows of a block, of each of its heads.
  __host__ __device__ static constexpr int tileRows(int heads) { return kGroups * kTaskRows / heads; }
};

// What a block computes: `rows` query rows of one or two heads, by `units` warpgroups.
struct PrefixTask {
  Prefix prefix;
  int begin;         // of the sequence
  int first, rows;   // query rows, counted in the sequence
  int head, heads;   // the first one, and how many
  int group_rows;    // rows of a warpgroup, of each head
  int units;         // warpgroups that have rows; 0: the rows are filler, kNoTask: there is nothing more to do
  int own_begin;     // the first of the sequence's own keys that is read, counted in it
  int prefix_steps;  // over keys of the prefix, before those over the sequence's own
  int steps;         // all of them

  __device__ int rowOf(int group) const { return first + group * group_rows; }
  // A step's first key, counted in the sequence: those of the prefix are below 0.
  __device__ int keyOf(int step) const {
    return step * kTaskRows + (step < prefix_steps ? -prefix.length : own_begin - prefix_steps * kTaskRows);
  }
  __device__ int tokenOf(int step) const {
    return keyOf(step) + (step < prefix_steps ? prefix.begin + prefix.length : begin);
  }
  // How many keys a step has.
  __device__ int keysOf(int step) const {
    return min((step < prefix_steps ? 0 : first + rows) - keyOf(step), kTaskRows);
  }
};
constexpr int kNoTask = -1;

template <typename S>
struct PrefixShared {
  uint64_t queries[S::kQuerySlots][S::kGroups], queries_free[S::kQuerySlots][S::kGroups];
  uint64_t full[S::kSlots], empty[S::kSlots];
  PrefixTask tasks[S::kQuerySlots];
};

// The parts of dynamic shared memory, as shared-space addresses; base is a multiple of 1024.
template <typename S>
struct PrefixMemory {
  unsigned base;
  __device__ unsigned query(int slot, int group) const { return base + (slot * S::kGroups + group) * S::kQueryBytes; }
  __device__ unsigned slot(int number) const { return base + S::kAllQueryBytes + number * S::kKeyBytes; }
};

template <typename S>
__device__ inline PrefixTask prefixTaskOf(const AttentionParams& p, const QueryTile& tile, int head, int heads) {
  static_assert(S::kKeys == kTaskRows);
  PrefixTask task{{0, 0}, tile.begin, tile.first, tile.rows, head, heads};
  task.group_rows = kTaskRows / heads;
  if (tile.filler) return task;
  task.prefix = prefixOf(p.prefix, p.cu_seqlens, p.B, p.T, tile.sequence);
  task.units = ceilDiv(tile.rows, task.group_rows);
  const int row = task.prefix.length + tile.first;
  const int hidden_keys = visibleKeys(p, row, row, row + 1).begin / S::kKeys * S::kKeys;  // from all rows, whole steps
  if (hidden_keys < task.prefix.length) {
    task.prefix.begin += hidden_keys;
    task.prefix.length -= hidden_keys;
  } else {
    task.own_begin = (hidden_keys - task.prefix.length) / S::kKeys * S::kKeys;
    task.prefix.length = 0;
  }
  task.prefix_steps = ceilDiv(task.prefix.length, S::kKeys);
  task.steps = task.prefix_steps + ceilDiv(tile.first + tile.rows - task.own_begin, S::kKeys);
  return task;
}

}  // namespace padfree
