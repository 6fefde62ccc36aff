// SPDX-License-Identifier: Apache-2.0
// Cuts sequences into attention tasks (attention/task.h) and lists them by cost, dearest first, and those of equal cost
// in the order of the sequences: a counting sort by one block, which gives the same list in every run.
#pragma once

#include "common/integers.h"
#include "schedule/launch.h"
#include "schedule/scan.cuh"

namespace padfree {

constexpr int kCausalSlices = 16;
constexpr int kTaskClasses = 256;  // by cost, dearest first; what is beyond them counts as the dearest

template <int kWarps>
struct TaskMemory {
  // For each class and warp: the number of tasks of that class from that warp's sequences, then the offset of the next.
  alignas(16) int next[kTaskClasses * kWarps];
  unsigned scratch[kWarps];
  int groups;  // of rows, of all sequences

  __device__ int& nextOf(int task_class) { return next[task_class * kWarps + threadIdx.x / kWarpSize]; }
};

// The sequences of this warp.
struct WarpRange {
  int begin, end;

  __device__ WarpRange(int B, int warps) {
    const int each = ceilDiv(B, warps);
    begin = min(static_cast<int>(threadIdx.x) / kWarpSize * each, B);
    end = min(begin + each, B);
  }

  // Whether there are sequences from `first` on, the same for all lanes.
  __device__ bool has(int first) const { return __any_sync(kFullMask, first < end); }
};

// Where the sequence of a lane begins and ends.
struct LaneSequence {
  int begin, end;
};

// How all sequences of a batch are cut into tasks. Where there are fewer groups of rows than warpgroups, tasks have so
// few groups that every multiprocessor gets a task; where that is one group, two warpgroups split its keys.
struct TaskShape {
  int heads;
  int groups;           // of rows in a task, at most; where it is one, two warpgroups split its keys
  bool is_small_batch;  // whether each multiprocessor is to have one task

  __device__ TaskShape(int64_t all_groups, int heads, int num_sms) : heads(heads) {
    is_small_batch = all_groups < kTaskWidth * num_sms;
    groups = is_small_batch ? max(ceilDiv(static_cast<unsigned>(all_groups), static_cast<unsigned>(num_sms)), 1u)
                            : kTaskWidth;
  }
};
static_assert(kTaskWidth == 3);  // or else tasks with more than one group may have a warpgroup left for keys

// The cost of a task whose warpgroups each go through so many half steps of keys, in units of 0.05 us (H200, heads of
// 64; each kind of task was measured by itself). A further warpgroup adds less than it would take alone. Heads have
// keys of their own: three of them together would mostly wait for keys, as the ring has room for one step of each. So
// three share a task only for sequences of one step, or of two in a small batch.
__device__ inline int taskCost(int half_steps, int heads, int warpgroups) {
  if (warpgroups == 1) return 8 * half_steps + 17;
  if (heads == 1 && warpgroups == 2) return 10 * half_steps + 24;
  return 13 * half_steps + (heads == 3 ? 52 : 24);
}

// The class of tasks of this cost: eight for each doubling, with those of full parts and of remainders apart.
__device__ inline int taskClass(int cost, bool is_remainder) {
  const int eighths = (__float_as_int(static_cast<float>(cost)) >> 20) - (127 << 3);  // exponent, 3 bits of mantissa
  return kTaskClasses - 1 - min(2 * eighths + !is_remainder, kTaskClasses - 1);
}

// The tasks of one sequence: `full_parts` parts of task_shape.groups groups, with one head per task, and a remainder: a
// single group has two heads per task, or as many as there are warpgroups where that costs little or saves a second
// round.
struct SequenceTasks {
  int begin, length;
  int remainder, remainder_heads;
  int splits;
  int full_tasks, remainder_tasks;
  int full_class, remainder_class;
  int first_part = 0;  // the number of the first full part

  __device__ SequenceTasks(const TaskShape& task_shape, const LaneSequence& sequence)
      : begin(sequence.begin), length(sequence.end - sequence.begin) {
    const int groups = ceilDiv(length, kTaskRows), steps = ceilDiv(length, kTaskKeys);
    const int full_parts = task_shape.groups == 3 ? groups / 3 : task_shape.groups == 2 ? groups / 2 : groups;
    remainder = groups - full_parts * task_shape.groups;
    remainder_heads = remainder != 1                                            ? 1
                      : steps == 1 || (task_shape.is_small_batch && steps == 2) ? task_shape.groups
                                                                                : 2;
    splits = task_shape.groups == 1 && steps > 1 ? 2 : 1;
    full_tasks = full_parts * task_shape.heads;
    const int head_groups = remainder_heads == 1   ? task_shape.heads
                            : remainder_heads == 2 ? ceilDiv(task_shape.heads, 2)
                                                   : ceilDiv(task_shape.heads, 3);
    remainder_tasks = remainder > 0 ? head_groups : 0;
    const int all_steps = ceilDiv(length, kTaskKeys / 2), half_steps = splits == 1 ? all_steps : ceilDiv(all_steps, 2);
    full_class = taskClass(taskCost(half_steps, 1, task_shape.groups * splits), false);
    remainder_class = taskClass(taskCost(half_steps, remainder_heads, remainder * remainder_heads * splits), true);
  }

  __device__ int tasks() const { return full_tasks + remainder_tasks; }

  // Where rows see no keys after their own, parts differ in cost. They are listed in slices of this many full parts, at
  // most kCausalSlices slices, and the remainder after these: the first rows of the sequence, which see the fewest
  // keys.
  __device__ int partsOfSlice(const TaskShape& task_shape) const {
    return max(ceilDiv(full_tasks / task_shape.heads, kCausalSlices), 1);
  }
  __device__ int slices(const TaskShape& task_shape) const {
    return ceilDiv(full_tasks / task_shape.heads, partsOfSlice(task_shape)) + (remainder > 0);
  }
  // The tasks of one slice.
  __device__ SequenceTasks causalSlice(const TaskShape& task_shape, int slice) const {
    SequenceTasks result = *this;
    const int full_parts = full_tasks / task_shape.heads, each = partsOfSlice(task_shape);
    const int parts = max(min(full_parts - slice * each, each), 0);
    result.first_part = min(slice * each, full_parts);
    result.full_tasks = parts * task_shape.heads;
    result.remainder_tasks = slice == ceilDiv(full_parts, each) ? remainder_tasks : 0;
    const int all_steps = remainder + (result.first_part + parts) * task_shape.groups;  // of kTaskRows keys
    const int half_steps = splits == 1 ? all_steps : ceilDiv(all_steps, 2);
    result.full_class = taskClass(taskCost(half_steps, 1, task_shape.groups * splits), false);
    result.remainder_class = taskClass(taskCost(remainder, remainder_heads, remainder * remainder_heads), true);
    return result;
  }
};
static_assert(kTaskRows == kTaskKeys / 2);

using Counts = Packed<int, 4>;

// Called by the whole block before listTasks, with a barrier in between.
template <int kWarps>
__device__ void clearTaskMemory(TaskMemory<kWarps>& memory) {
  constexpr int kEach = kTaskClasses / kWarpSize;
  static_assert(kEach == 8);
  Counts* const counts = reinterpret_cast<Counts*>(&memory.next[threadIdx.x * kEach]);
  counts[0] = counts[1] = Counts{};
  if (threadIdx.x == 0) memory.groups = 0;
}

// Turns counts into offsets: a task comes after all of dearer classes, and within its class after those of earlier
// warps. Returns the number of tasks.
template <int kWarps>
__device__ int offsetTasks(TaskMemory<kWarps>& memory) {
  constexpr int kEach = kTaskClasses / kWarpSize;
  constexpr unsigned kLimit = INT_MAX;
  Counts* const counts = reinterpret_cast<Counts*>(&memory.next[threadIdx.x * kEach]);
  Counts halves[2] = {counts[0], counts[1]};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += halves[i / 4].v[i % 4];
  const unsigned end = warpInclusiveSum(sum, kLimit);
  unsigned total;
  const unsigned before = blockExclusiveSum(__shfl_sync(kFullMask, end, kWarpSize - 1), kLimit, memory.scratch, total);
  int offset = before + end - sum;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int& value = halves[i / 4].v[i % 4];
    const int count = value;
    value = offset;
    offset += count;
  }
  counts[0] = halves[0];
  counts[1] = halves[1];
  __syncthreads();
  return total;
}

// The offset of this lane's first task of a class. It means nothing for lanes whose sequences have none.
template <int kWarps>
__device__ int takeOffsets(TaskMemory<kWarps>& memory, int task_class, int tasks) {
  const int lane = threadIdx.x % kWarpSize;
  int offset = 0;
  for (unsigned waiting = __ballot_sync(kFullMask, tasks > 0); waiting;) {
    const int current_class = __shfl_sync(kFullMask, task_class, __ffs(waiting) - 1);
    const bool mine = task_class == current_class && tasks > 0;
    const int sum = warpInclusiveSum(mine ? tasks : 0, INT_MAX), next = memory.nextOf(current_class);
    if (mine) offset = next + sum - tasks;
    __syncwarp();
    if (lane == kWarpSize - 1) memory.nextOf(current_class) = next + sum;
    __syncwarp();
    waiting &= ~__ballot_sync(kFullMask, mine);
  }
  return offset;
}

// Writes the tasks of the sequences that the lanes of this warp have, 32 tasks at a time, whichever lanes have them.
template <bool kCausal>
__device__ inline void writeTasks(const SequenceTasks& own, const TaskShape& task_shape, int full_offset,
                                  int remainder_offset, AttentionTask* tasks) {
  const int lane = threadIdx.x % kWarpSize;
  const int end = warpInclusiveSum(own.tasks(), INT_MAX), total = __shfl_sync(kFullMask, end, kWarpSize - 1);
  const int own_cut = own.remainder | own.remainder_heads << 4 | own.splits << 8;
#pragma unroll 1
  for (int first = 0; __any_sync(kFullMask, first < total); first += kWarpSize) {
    const int number = first + lane;
    int owner = 0;
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
      if (__shfl_sync(kFullMask, end, owner + step - 1) <= number) owner += step;
    }
    const int begin = __shfl_sync(kFullMask, own.begin, owner), length = __shfl_sync(kFullMask, own.length, owner);
    const int in_sequence = number - __shfl_sync(kFullMask, end - own.tasks(), owner);
    const int full_tasks = __shfl_sync(kFullMask, own.full_tasks, owner);
    const int first_full = __shfl_sync(kFullMask, full_offset, owner);
    const int first_remainder = __shfl_sync(kFullMask, remainder_offset, owner);
    const int cut = __shfl_sync(kFullMask, own_cut, owner);
    const int first_part = kCausal ? __shfl_sync(kFullMask, own.first_part, owner) : 0;
    if (number >= total) continue;
    const bool in_remainder = in_sequence >= full_tasks;
    const int remainder = cut & 15, remainder_heads = cut >> 4 & 15, splits = cut >> 8;
    const int part = static_cast<unsigned>(min(in_sequence, full_tasks)) / static_cast<unsigned>(task_shape.heads);
    const int in_part = in_sequence - part * task_shape.heads,
              head = in_remainder ? in_part * remainder_heads : in_part;
    const TaskParts parts{head, in_remainder ? min(remainder_heads, task_shape.heads - head) : 1,
                          in_remainder ? remainder : task_shape.groups, splits};
    const int groups_before = (first_part + part) * task_shape.groups + (kCausal ? remainder : 0);
    tasks[in_remainder ? first_remainder + in_part : first_full + in_sequence] = {
        begin, length, kCausal && in_remainder ? 0 : groups_before * kTaskRows, packParts(parts)};
  }
}

// Fills p.tasks. `first_sequence` is this lane's one of the first kWarpSize sequences of `range`; those after them are
// in p.cu_seqlens. `groups` are those of this lane's sequences, `token_count` the tokens of all.
// kCausal: p.causal, compiled separately so that other lists take no longer.
template <bool kCausal, int kWarps>
__device__ void listTasks(const ScheduleParams& p, const WarpRange& range, const LaneSequence& first_sequence,
                          int groups, int token_count, TaskMemory<kWarps>& memory) {
  const int lane = threadIdx.x % kWarpSize;
  const int warp_groups = __reduce_add_sync(kFullMask, groups);
  if (lane == 0 && warp_groups > 0) atomicAdd(&memory.groups, warp_groups);
  __syncthreads();
  const TaskShape task_shape(static_cast<int64_t>(memory.groups) * p.H, p.H, p.num_sms);
  AttentionTask* const tasks = p.tasks + 1;
  int count = 0;
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {  // counts tasks, then writes them
#pragma unroll 1
    for (int first = range.begin; range.has(first); first += kWarpSize) {
      const int b = first + lane;
      LaneSequence sequence{};
      if (first == range.begin) {
        sequence = first_sequence;
      } else if (b < range.end) {
        sequence = {p.cu_seqlens[b], p.cu_seqlens[b + 1]};
      }
      const SequenceTasks all(task_shape, sequence);
      const int slices = kCausal ? __reduce_max_sync(kFullMask, all.slices(task_shape)) : 1;
#pragma unroll 1
      for (int slice = 0; slice < slices; ++slice) {
        const SequenceTasks own = kCausal ? all.causalSlice(task_shape, slice) : all;
        if (round == 0) {
          if (own.full_tasks > 0) atomicAdd(&memory.nextOf(own.full_class), own.full_tasks);
          if (own.remainder_tasks > 0) atomicAdd(&memory.nextOf(own.remainder_class), own.remainder_tasks);
        } else {
          const int full_offset = takeOffsets(memory, own.full_class, own.full_tasks);
          const int remainder_offset = takeOffsets(memory, own.remainder_class, own.remainder_tasks);
          writeTasks<kCausal>(own, task_shape, full_offset, remainder_offset, tasks);
        }
      }
    }
    if (round == 1) break;
    __syncthreads();
    count = offsetTasks(memory);
  }

  const int fillers = ceilDiv(p.T - token_count, kTaskRows);
#pragma unroll 1
  for (int i = threadIdx.x; i < fillers; i += kWarps * kWarpSize) {
    const int token = token_count + i * kTaskRows;
    tasks[count + i] = {token, 0, min(p.T - token, kTaskRows), packParts({0, 1, 1, 1})};
  }
  if (threadIdx.x == 0) p.tasks[0] = {count + fillers, 0, 0, 0};
}

}  // namespace padfree
