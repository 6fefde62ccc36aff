// SPDX-License-Identifier: Apache-2.0
// How a block of the Hopper kernel for shared prefixes is laid out, and which rows and keys it works on.
#pragma once

#include "attention/prefix.cuh"
#include "attention/query_tiles.cuh"
#include "attention/sm90/maps.cuh"
#include "attention/sm90/positions.cuh"

namespace padfree {

constexpr int kQuerySlots = 2;  // the next task's Q arrives while this one is computed

// kTaskWidth warpgroups that compute and one that loads.
template <typename Element>
struct PrefixShape : Sm90Tiles<Element, 128, 64> {
  using Tiles = Sm90Tiles<Element, 128, 64>;
  static constexpr PositionMode kPositionMode = PositionMode::kWindow;
  static constexpr int kThreads = (kTaskWidth + 1) * kWarpgroup;
  static constexpr int kSlots = 8;  // K and V of a step take a slot each, in turn
  static constexpr int kAllQueryBytes = kQuerySlots * kTaskWidth * Tiles::kQueryBytes;
  static constexpr int kSharedBytes = kAllQueryBytes + kSlots * Tiles::kKeyBytes + 1024;  // the last to align
  // Registers after the loading warpgroup gave its own away; 512 threads start with 128 each.
  static constexpr int kComputeRegisters = 152, kProducerRegisters = 56;
};

// What a block computes: `rows` query rows of one or two heads, by `units` warpgroups.
struct PrefixTask {
  Prefix prefix;
  int begin;         // of the sequence
  int first, rows;   // query rows, counted in the sequence
  int head, heads;   // the first one, and how many
  int group_rows;    // rows of a warpgroup, of each head
  int units;         // warpgroups that have rows; 0: the rows are filler, kNoTask: there is nothing more to do
  int prefix_steps;  // over keys of the prefix, before those over the sequence's own
  int steps;         // all of them

  __device__ int rowOf(int group) const { return first + group * group_rows; }
  // The first token of a step's keys, and how many they are.
  __device__ int tokenOf(int step) const {
    return (step < prefix_steps ? prefix.begin : begin - prefix_steps * kTaskRows) + step * kTaskRows;
  }
  __device__ int keysOf(int step) const {
    const int end = step < prefix_steps ? prefix.length : prefix_steps * kTaskRows + first + rows;
    return min(end - step * kTaskRows, kTaskRows);
  }
};
constexpr int kNoTask = -1;

template <typename S>
struct PrefixShared {
  uint64_t queries[kQuerySlots][kTaskWidth], queries_free[kQuerySlots][kTaskWidth];
  uint64_t full[S::kSlots], empty[S::kSlots];
  PrefixTask tasks[kQuerySlots];
};

// The parts of dynamic shared memory, as shared-space addresses; base is a multiple of 1024.
template <typename S>
struct PrefixMemory {
  unsigned base;
  __device__ unsigned query(int slot, int group) const { return base + (slot * kTaskWidth + group) * S::kQueryBytes; }
  __device__ unsigned slot(int number) const { return base + S::kAllQueryBytes + number * S::kKeyBytes; }
};

// Query rows of a block, of each of its heads.
__host__ __device__ constexpr int tileRows(int heads) {
  return kTaskWidth * kTaskRows / heads;
}

template <typename S>
__device__ inline PrefixTask prefixTaskOf(const AttentionParams& p, const QueryTile& tile, int head, int heads) {
  static_assert(S::kKeys == kTaskRows);
  PrefixTask task{{0, 0}, tile.begin, tile.first, tile.rows, head, heads};
  task.group_rows = kTaskRows / heads;
  if (tile.filler) return task;
  task.prefix = prefixOf(p.prefix, p.cu_seqlens, p.B, p.T, tile.sequence);
  task.units = ceilDiv(tile.rows, task.group_rows);
  task.prefix_steps = ceilDiv(task.prefix.length, S::kKeys);
  task.steps = task.prefix_steps + ceilDiv(tile.first + tile.rows, S::kKeys);
  return task;
}

}  // namespace padfree
