// SPDX-License-Identifier: Apache-2.0
// How a block of the Hopper kernel for wide heads is laid out, and which rows and keys it works on.
#pragma once

#include "attention/query_tiles.cuh"
#include "attention/sm90/maps.cuh"
#include "attention/sm90/positions.cuh"

namespace padfree {

constexpr int kWideKeys = 64;   // of a step
constexpr int kWideGroups = 2;  // warpgroups that compute, each a unit: 64 query rows of one head

// One block per multiprocessor: kWideGroups warpgroups that compute and one that loads.
template <typename Element, int kHeadSize>
struct WideShape : Sm90Tiles<Element, kHeadSize, kWideKeys> {
  using Tiles = Sm90Tiles<Element, kHeadSize, kWideKeys>;
  static constexpr PositionMode kPositionMode = PositionMode::kWindow;
  static constexpr int kThreads = (kWideGroups + 1) * kWarpgroup;
  static constexpr int kTileRows = kWideGroups * kTaskRows;
  // K and V of a step take a slot each, in turn.
  static constexpr int kSlots = (224 * 1024 - kWideGroups * Tiles::kQueryBytes) / Tiles::kKeyBytes;
  static constexpr int kSharedBytes = kWideGroups * Tiles::kQueryBytes + kSlots * Tiles::kKeyBytes + 1024;  // to align
  // Registers after the loading warpgroup gave its own away; 384 threads start with 168 each.
  static constexpr int kComputeRegisters = 240, kProducerRegisters = 24;
  // Where two warpgroups share the keys of a unit, the second one's results take the place of K and V.
  static_assert(kWarpgroup * (Tiles::kD / 2 + 4) * 4 <= kSlots * Tiles::kKeyBytes);
};

template <typename S>
struct WideBarriers {
  uint64_t queries[kWideGroups], full[S::kSlots], empty[S::kSlots];
};

// The parts of dynamic shared memory, as shared-space addresses; base is a multiple of 1024.
template <typename S>
struct WideMemory {
  unsigned base;
  __device__ unsigned query(int group) const { return base + group * S::kQueryBytes; }
  __device__ unsigned slot(int number) const { return base + kWideGroups * S::kQueryBytes + number * S::kKeyBytes; }
};

// What a block computes: `units` units, neighbouring groups of rows of one head or neighbouring heads of one group, or
// a single one, whose steps of keys the warpgroups then share.
struct WideTask {
  int begin, length;              // of the sequence
  int first, head;                // of the first unit: its first query row, counted in the sequence, and its head
  int units;                      // 0: nothing to do
  bool two_heads;                 // the second unit is another head's, not the following rows'
  bool splits;                    // both warpgroups have the first unit, and take its steps in turn
  int key_begin, key_end, steps;  // the keys that some row sees, counted in the sequence

  __device__ int rowOf(int group) const { return first + (splits || two_heads ? 0 : group * kTaskRows); }
  __device__ int headOf(int group) const { return head + (two_heads ? group : 0); }
};

// Steps that a warpgroup takes: number `first` of the task's and those after it, `stride` apart.
struct WideSteps {
  int first, count, stride;
};

// The task of part `part` of a tile: with two groups of rows that is a head, with one it is a pair of heads with the
// same K and V.
template <typename S>
__device__ inline WideTask wideTaskOf(const AttentionParams& p, const QueryTile& tile, int part) {
  WideTask task{tile.begin, tile.length, tile.first, part, kWideGroups, false, false, 0, 0, 0};
  if (tile.rows <= kTaskRows) {
    const int ratio = p.H / p.kv_heads, kv_head = part / ratio, pair = (part - kv_head * ratio) * 2;
    task.head = kv_head * ratio + pair;
    task.two_heads = pair + 1 < ratio;
    task.units = task.two_heads ? 2 : pair < ratio ? 1 : 0;
  }
  const KeyRange range = visibleKeys(p, tile.first, tile.first + tile.rows - 1, tile.length);
  task.key_begin = range.begin;
  task.key_end = range.end;
  task.steps = ceilDiv(static_cast<unsigned>(range.end - range.begin), static_cast<unsigned>(S::kKeys));
  task.splits = task.units == 1 && task.steps > 1;
  return task;
}

template <typename S>
__device__ inline WideSteps wideStepsOf(const AttentionParams& p, const WideTask& task, int group) {
  if (task.splits) return {group, (task.steps + 1 - group) / 2, 2};
  if (task.two_heads || task.units == 1) return {0, group < task.units ? task.steps : 0, 1};
  const int first = task.rowOf(group), last = min(first + kTaskRows, task.length) - 1;
  const KeyRange range = visibleKeys(p, first, last, task.length);
  const int begin = (range.begin - task.key_begin) / S::kKeys;
  const int end = ceilDiv(static_cast<unsigned>(range.end - task.key_begin), static_cast<unsigned>(S::kKeys));
  return {begin, end - begin, 1};
}

}  // namespace padfree
