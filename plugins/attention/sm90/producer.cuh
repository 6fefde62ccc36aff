// SPDX-License-Identifier: Apache-2.0
// The loading warps of the Hopper attention kernel: one hands out work items with their Q, one loads K, one V. Each
// goes through the block's tasks by itself, as far ahead as shared memory allows.
#pragma once

#include "attention/sm90/maps.cuh"
#include "attention/sm90/shape.cuh"
#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/integers.h"
#include "common/ptx/cp_async.cuh"

namespace padfree {

// The tasks of this block, for one thread. Rounds alternate in direction, so that the block with the longest task of a
// round gets the shortest of the next. The task after the current one is already on its way to `slots`: registers are
// few here, and one that waited for memory would be spilled, which waits too.
class TaskCursor {
 public:
  __device__ TaskCursor(const AttentionParams& p, AttentionTask (&slots)[2]) : p_(p), slots_(slots) {
    fetch();
    count_ = min(p.tasks->begin, p.num_tasks);
  }

  // Moves to the next task; false when there is none.
  __device__ bool advance(AttentionTask& task) {
    if (number() >= count_) return false;
    waitCopies<0>();
    task = slots_[round_ & 1];
    ++round_;
    if (number() < count_) fetch();
    return true;
  }

 private:
  __device__ int number() const { return round_ * gridDim.x + (round_ & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); }
  __device__ void fetch() {
    copyAsync16(&slots_[round_ & 1], p_.tasks + 1 + number(), true);  // a list has room for a first task of every block
    commitCopies();
  }

  const AttentionParams& p_;
  AttentionTask (&slots_)[2];
  int count_, round_ = 0;
};

// Lane g hands work items to warpgroup g and loads its Q.
template <typename S>
__device__ void distributeWorkItems(const AttentionParams& p, const AttentionMaps& maps, Sm90Shared<S>& shared,
                                    const Sm90Memory<S>& memory) {
  const int lane = threadIdx.x % kWarpSize;
  if (lane >= kTaskWidth) return;
  int stage = 0;       // number of the first stage of the task
  int item_count = 0;  // items that this lane's warpgroup was given
  const auto nextItem = [&]() -> AttentionWorkItem& {
    barrierWait(&shared.queries_free[item_count % S::kQuerySlots][lane], item_count / S::kQuerySlots & 1 ^ 1);
    return shared.items[item_count++ % kItemSlots][lane];
  };
  const auto queryBarrier = [&] { return &shared.queries[(item_count - 1) % S::kQuerySlots][lane]; };
  AttentionTask task;
  for (TaskCursor cursor(p, shared.upcoming[0][lane]); cursor.advance(task);) {
    waitForPriorGrids();  // the first time; ahead of the loop it would take a register that would be spilled
    const TaskParts parts = unpackParts(task.parts);
    const int items = parts.heads * parts.groups * parts.splits;
    const TaskKeys keys = keysOf<S>(p, task, parts);
    const int steps = keys.steps;
    if (lane < items) {
      const int split = lane & (parts.splits - 1), unit = lane >> parts.splits / 2;  // splits: 1 or 2
      const int head = parts.groups == 1 ? unit : 0;  // several groups leave room for one head
      const int last_split = (steps - 1) & (parts.splits - 1);
      AttentionWorkItem& item = nextItem();
      item.head = parts.head + head;
      item.stage = stage + split * parts.heads + head;
      item.stride = parts.splits * parts.heads;
      item.flags = packFlags({parts.groups == 1   ? kStageArrivals
                              : parts.groups == 2 ? kStageArrivals / 2
                                                  : kStageArrivals / 3,
                              parts.splits, split, split > last_split, lane + 1 < items ? lane + 1 : 0});
      if (task.length == 0) {
        item.token = task.begin;
        item.rows = 0;
        item.steps = task.first;
        barrierArrive(queryBarrier());
      } else {
        const int first = task.first + (unit - head) * kTaskRows, rows = min(task.length - first, kTaskRows);
        item.token = task.begin + first;
        item.rows = rows;
        item.steps = (steps - 1 - split) / parts.splits + 1;
        item.last_keys = split == last_split ? keys.end - keys.begin - (steps - 1) * S::kKeys : S::kKeys;
        if constexpr (S::kPositionMode != PositionMode::kNone) {
          item.first = first;
          item.begin = keys.begin;
          item.diagonal = keys.diagonal;
          if constexpr (S::kEndsByGroup) {
            const int end = visibleKeys(p, first, first + rows - 1, task.length).end;
            const int own = ceilDiv(static_cast<unsigned>(end - keys.begin), static_cast<unsigned>(S::kKeys));
            item.idle_steps = parts.groups > 1 ? max(steps - own, 0) : 0;
            if (item.idle_steps > 0) {  // all keys of the last own step exist
              item.steps = own;
              item.last_keys = S::kKeys;
            }
          }
        }
        loadRows<S, kTaskRows>(maps, 0, memory.query((item_count - 1) % S::kQuerySlots, lane), rows, parts.head + head,
                               task.begin + first, queryBarrier());
      }
    }
    stage += steps * parts.heads;
  }
  nextItem().rows = -1;
  barrierArrive(queryBarrier());
}

// Fills the stages with K (operand 1) or V (operand 2), step by step, and head by head in each. One lane.
//
// All blocks begin at once, and memory is busy for microseconds with what they ask for. So the first fill goes stage by
// stage: the keys that warpgroups begin with are asked for beside Q, and all else when keys before it have arrived.
template <typename S>
__device__ void loadStages(const AttentionParams& p, const AttentionMaps& maps, Sm90Shared<S>& shared,
                           const Sm90Memory<S>& memory, int operand) {
  if (threadIdx.x % kWarpSize > 0) return;
  TaskCursor cursor(p, shared.upcoming[operand][0]);
  AttentionTask task;
  const bool has_task = cursor.advance(task);
  waitForPriorGrids();
  if (!has_task) return;
  releaseNextGrid();
  int stage_index = 0;
  do {
    const TaskParts parts = unpackParts(task.parts);
    const TaskKeys keys = keysOf<S>(p, task, parts);
    const int first_stages = parts.heads * parts.splits;
    for (int step = 0; step < keys.steps; ++step) {
      const int key = keys.begin + keyBlockOfStep<S>(keys.diagonal, step) * S::kKeys;
      for (int head = 0; head < parts.heads; ++head, ++stage_index) {
        const int stage = stage_index % S::kStages;
        if (stage_index < S::kStages) {
          const int before = operand == 1 ? stage_index - first_stages : stage_index;
          if (before >= 0) barrierWait(&shared.keys[before], 0);
        } else {
          barrierWait(&shared.empty[stage], stage_index / S::kStages & 1 ^ 1);
        }
        loadRows<S, S::kKeys>(maps, operand, operand == 1 ? memory.key(stage) : memory.value(stage),
                              min(keys.end - key, S::kKeys), keyHead(p, parts.head + head), task.begin + key,
                              operand == 1 ? &shared.keys[stage_index % S::kKeyBarriers] : &shared.values[stage]);
        if (operand == 1 && stage_index >= S::kStages) storeShared(&shared.issued_stages, stage_index + 1);
      }
    }
  } while (cursor.advance(task));
}

}  // namespace padfree
