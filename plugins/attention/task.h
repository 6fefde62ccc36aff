// SPDX-License-Identifier: Apache-2.0
// What the blocks of the Hopper attention kernel do, in lists that PadfreeSchedule makes on the device, once for all
// layers with the same number of heads.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace padfree {

constexpr int kTaskRows = 64;   // query rows of a group: what one warpgroup takes
constexpr int kTaskKeys = 128;  // keys of a step
constexpr int kTaskWidth = 3;   // warpgroups of a block

// Some query rows of one sequence for one block, whose warpgroups divide them by heads, groups of rows and splits of
// the keys: heads * groups * splits <= kTaskWidth.
struct alignas(16) AttentionTask {
  int begin;   // first token of the sequence; in entry 0 of a list: the number of tasks, which are entries 1 to begin
  int length;  // of the sequence; 0: filler, whose rows become zeros in all heads
  int first;   // first query row, counted in the sequence; filler: how many rows, at most kTaskRows
  int parts;   // see packParts
};

struct TaskParts {
  int head;    // the first
  int heads;   // how many
  int groups;  // of kTaskRows query rows; the last may be partly beyond the sequence
  int splits;  // 1 or 2: warpgroup i of a split takes key steps i, i + splits, ...
};

__host__ __device__ inline int packParts(TaskParts parts) {
  return parts.head | parts.heads << 16 | parts.groups << 20 | parts.splits << 24;
}

__host__ __device__ inline TaskParts unpackParts(int packed) {
  return {packed & 0xffff, packed >> 16 & 15, packed >> 20 & 15, packed >> 24 & 15};
}

// The most tasks of a batch that is too small to fill the GPU: over all heads it has fewer groups of rows than the GPU
// has warpgroups, of which no more than 170 multiprocessors are counted, and a task has at least one group.
constexpr int kMaxFewTasks = 512;

// Entries that a list for T tokens in B sequences needs at most, with entry 0; Size is a number or a symbolic size.
// A larger batch is cut into parts of kTaskWidth groups: a sequence of length L > 0 has ceil(L / 192) <= (L + 191) /
// 192 of them, all together at most T / 192 + B, and each makes at most H tasks. Filler makes at most ceil(T / 64).
template <typename Size>
constexpr Size taskListEntries(const Size& T, const Size& B, int64_t H) {
  return (T / (kTaskWidth * kTaskRows) + B) * H + T / kTaskRows + (1 + kMaxFewTasks + 1);
}

// How many tasks such a list has room for: entry 0 is none.
inline int taskListRoom(int T, int B, int H) {
  return static_cast<int>(taskListEntries<int64_t>(T, B, H) - 1);
}

}  // namespace padfree
