// SPDX-License-Identifier: Apache-2.0
// How a block of the Hopper kernel is laid out, and what its producer hands to its warpgroups.
#pragma once

#include "attention/launch.h"
#include "attention/task.h"
#include "attention/window.cuh"
#include "common/integers.h"
#include "common/panel.cuh"
#include "common/ptx/barriers.cuh"
#include "common/ptx/memory.cuh"
#include "common/ptx/wgmma.cuh"

namespace padfree {

// What scores depend on beside Q and K: on nothing, on windows alone, or on a bias and windows (see
// positions.cuh).
enum class PositionMode { kNone, kWindow, kSlope, kDistance };

// The head of K and V that a head of Q reads.
__device__ inline int keyHead(const AttentionParams& p, int head) {
  return p.kv_heads == p.H ? head : head / (p.H / p.kv_heads);
}

constexpr int kLoadingWarps = 3;  // one hands out work items with their Q, one loads K, one V

// Q of kTaskRows rows, and K or V of kStepKeys keys, in shared memory: panels of kRowBytes per row, narrow ones for
// heads of up to 32 columns.
template <typename Element, int kHeadSize, int kStepKeys>
struct Sm90Tiles {
  using T = Element;
  static constexpr int kD = kHeadSize, kKeys = kStepKeys;
  static constexpr int kColumns = kD < kPanelColumns ? kD : kPanelColumns, kPanels = kD / kColumns;  // of a panel
  static constexpr int kRowBytes = kColumns * 2, kRowChunks = kRowBytes / 16;
  static_assert(kRowBytes == kPanelRowBytes || kRowBytes == kNarrowPanelRowBytes);
  static constexpr int kQueryPanelBytes = kTaskRows * kRowBytes, kQueryBytes = kPanels * kQueryPanelBytes;
  static constexpr int kKeyPanelBytes = kKeys * kRowBytes, kKeyBytes = kPanels * kKeyPanelBytes;
  __device__ static int panelOffset(int row, int chunk) {
    return kRowBytes == kPanelRowBytes ? padfree::panelOffset(row, chunk) : narrowPanelOffset(row, chunk);
  }
};

// One block per multiprocessor: kTaskWidth warpgroups that compute and one that loads.
template <typename Element, int kHeadSize, int kStepKeys, int kRingStages, PositionMode kDependsOn>
struct Sm90Shape : Sm90Tiles<Element, kHeadSize, kStepKeys> {
  using Tiles = Sm90Tiles<Element, kHeadSize, kStepKeys>;
  static constexpr PositionMode kPositionMode = kDependsOn;
  static constexpr int kStages = kRingStages;
  static constexpr int kKeyBarriers = 2 * kStages;  // see Sm90Shared
  // Two buffers of Q per warpgroup, where they fit: the next item's Q arrives while this one is computed.
  static constexpr int kQuerySlots = Tiles::kD <= 64 ? 2 : 1;
  static constexpr int kThreads = (kTaskWidth + 1) * kWarpgroup;
  // Where two warpgroups share the keys of a group of rows, the second one's references, sums and output pass through
  // here.
  static constexpr int kExchangeBytes = kWarpgroup * (Tiles::kD / 2 + 4) * 4;
  static constexpr int kSharedBytes = kQuerySlots * kTaskWidth * Tiles::kQueryBytes + 2 * kStages * Tiles::kKeyBytes +
                                      kExchangeBytes + 1024;  // the last to align
  // Distance biases have a table per warpgroup after all that, which reaches beyond the range by what a step spans.
  static constexpr int kTableReach = Tiles::kKeys + 16;
  static constexpr int tableEntries(int range) { return 2 * (range + kTableReach) + 1; }
  // Whether each group of rows ends with the last step that one of its rows sees, not with that of its task: pays where
  // steps are as short as groups.
  static constexpr bool kEndsByGroup = kPositionMode != PositionMode::kNone && Tiles::kKeys == kTaskRows;
  // Whether warpgroups multiply in turns: not where each ends its items by itself, for a turn of one that has no more
  // steps holds up those that have.
  static constexpr bool kTakesTurns = kPositionMode != PositionMode::kWindow || !kEndsByGroup;
  // Registers after the producer gave its own away; 512 threads start with 128 each.
  static constexpr int kComputeRegisters = 160, kProducerRegisters = 32;
};

// What a warpgroup computes next: 64 query rows of one head against its share of the keys.
struct alignas(16) AttentionWorkItem {
  int token;  // first query row
  int rows;   // of them; 0: `steps` rows of filler to be zeroed, -1: this was the last item
  int head;
  int stage;       // number of the stage with its first keys, counted from the start of the kernel
  int steps;       // stages to go through
  int stride;      // from one of its stages to the next
  int last_keys;   // keys in its last stage
  int flags;       // see packFlags
  int first;       // the query row, counted in the sequence; from here on with positions alone
  int begin;       // first key of the task's, likewise
  int diagonal;    // see TaskKeys
  int idle_steps;  // steps of the task after its own, with kEndsByGroup
};

struct ItemFlags {
  int arrivals;  // at a stage's `empty` barrier, so that all its readers together make kStageArrivals
  int splits, split;
  bool idle_step;  // has one step less than the other shares: takes part in one round of ping-pong without work
  int next;        // warpgroup that multiplies after this one
};

__device__ inline int packFlags(ItemFlags f) {
  return f.arrivals | f.splits << 4 | f.split << 8 | f.idle_step << 12 | f.next << 16;
}
__device__ inline ItemFlags unpackFlags(int packed) {
  return {packed & 15, packed >> 4 & 15, packed >> 8 & 15, (packed >> 12 & 1) != 0, packed >> 16};
}

// The keys that a task goes through. With slopes, or a window that ends on the left, it takes step `diagonal` of them,
// near which its rows are, first: there a row's scores tell its reference best. The last step stays the last.
struct TaskKeys {
  int begin, end;  // counted in the sequence
  int steps, diagonal;
};

// Which block of keys step number `step` takes.
template <typename S>
__device__ inline int keyBlockOfStep(int diagonal, int step) {
  if constexpr (S::kPositionMode == PositionMode::kNone) return step;
  return step == 0 ? diagonal : step <= diagonal ? step - 1 : step;
}

template <typename S>
__device__ inline TaskKeys keysOf(const AttentionParams& p, const AttentionTask& task, const TaskParts& parts) {
  TaskKeys keys{0, task.length, 0, 0};
  if constexpr (S::kPositionMode != PositionMode::kNone) {
    if (task.length > 0) {  // no filler
      const int last = min(task.first + parts.groups * kTaskRows, task.length) - 1;
      const KeyRange range = visibleKeys(p, task.first, last, task.length);
      // Each of two shares has a step: their sequence is longer than one.
      const int min_keys = (parts.splits - 1) * S::kKeys + 1;
      keys.begin = max(min(range.begin, task.length - min_keys), 0);
      keys.end = max(range.end, min(keys.begin + min_keys, task.length));
    }
  }
  keys.steps = ceilDiv(static_cast<unsigned>(keys.end - keys.begin), static_cast<unsigned>(S::kKeys));
  if constexpr (S::kPositionMode != PositionMode::kNone) {
    if (S::kPositionMode == PositionMode::kSlope || p.window_left >= 0) {
      keys.diagonal = max(min((task.first - keys.begin) / S::kKeys, keys.steps - 2), 0);
    }
  }
  return keys;
}

constexpr int kStageArrivals = 6;  // divides among 1, 2 or 3 warpgroups

// Items are kept until a warpgroup has written its output, while the next two may have been distributed.
constexpr int kItemSlots = 4;

template <typename S>
struct Sm90Shared {
  uint64_t queries[S::kQuerySlots][kTaskWidth], queries_free[S::kQuerySlots][kTaskWidth];
  // An mbarrier tells phases apart by their parity alone, and takes a phase for the one two later. So a warpgroup that
  // waits for a stage's keys must know that the keys of the previous stage at the same barrier have arrived, even if
  // they were another warpgroup's. They have arrived once the loads of a stage at most kStages before the awaited one
  // have been issued, because its slot had been released by then. Before the first stage of an item a warpgroup reads
  // `issued`; after that its own previous stage is the proof: it has arrived, and is at most kTaskWidth stages back.
  // Values are awaited after the keys of their stage, which were loaded after the previous stage in the same slot had
  // been released.
  uint64_t keys[S::kKeyBarriers], values[S::kStages], empty[S::kStages];
  int issued_stages;  // the keys of stages with smaller numbers have arrived or are in flight; kStages or more
  static_assert(kTaskWidth <= S::kStages);
  AttentionWorkItem items[kItemSlots][kTaskWidth];
  AttentionTask upcoming[kLoadingWarps][kTaskWidth][2];  // of every lane that loads
};

// The parts of dynamic shared memory, as shared-space addresses; base is a multiple of 1024.
template <typename S>
struct Sm90Memory {
  unsigned base;
  __device__ unsigned query(int slot, int group) const { return base + (slot * kTaskWidth + group) * S::kQueryBytes; }
  __device__ unsigned key(int stage) const {
    return base + S::kQuerySlots * kTaskWidth * S::kQueryBytes + stage * S::kKeyBytes;
  }
  __device__ unsigned value(int stage) const { return key(S::kStages + stage); }
  __device__ unsigned exchange() const { return key(2 * S::kStages); }
  __device__ unsigned table(int group, int entries) const {
    return exchange() + S::kExchangeBytes + group * entries * sizeof(float);
  }
};

// Named barriers; 0 is __syncthreads.
constexpr int kCombineBarrier = 1, kGroupBarrier = 2, kPingPongBarrier = 5;
static_assert(kPingPongBarrier + kTaskWidth <= 16 && kTaskWidth == 3);

}  // namespace padfree
