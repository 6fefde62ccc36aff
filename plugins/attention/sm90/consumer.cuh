// SPDX-License-Identifier: Apache-2.0
// The computing warpgroups of the Hopper attention kernel.
#pragma once

#include "attention/sm90/positions.cuh"
#include "attention/sm90/rows.cuh"

namespace padfree {

// Where the keys of a work item's steps are: see TaskKeys.
struct KeyOffsets {
  int first_distance;  // from the warp's first row to the task's first key
  int diagonal;
};

// Whether a warpgroup lets the next one multiply when its products are done, not when they are issued: small ones that
// run side by side hold up each other's softmax.
template <typename S>
constexpr bool kLatePingPong = S::kD <= 32;

// The barriers at which a warpgroup waits, and those at which others wait for it.
template <typename S>
struct ConsumerBarriers {
  Sm90Shared<S>& shared;
  int group;

  // Stages are numbered through all items.
  __device__ void waitKeys(int stage) const {
    barrierWait(&shared.keys[stage % S::kKeyBarriers], stage / S::kKeyBarriers & 1);
  }
  __device__ void waitValues(int stage) const {
    barrierWait(&shared.values[stage % S::kStages], stage / S::kStages & 1);
  }
  __device__ void pingPongWait() const {
    if constexpr (S::kTakesTurns) namedBarrier(kPingPongBarrier + group, 2 * kWarpgroup);
  }
  __device__ static void pingPongArrive(int next) {
    if constexpr (S::kTakesTurns) namedArrive(kPingPongBarrier + next, 2 * kWarpgroup);
  }
  __device__ void pingPongPass(int next) const {
    pingPongWait();
    pingPongArrive(next);
  }
  // Release an item's queries, and the keys and values of a stage.
  __device__ void releaseQueries(int slot, int lane) const {
    __syncwarp();
    if (lane == 0) barrierArrive(&shared.queries_free[slot][group]);
  }
  __device__ void releaseStage(int stage, int group_thread, int arrivals) const {
    if (group_thread == 0) barrierArrive(&shared.empty[stage % S::kStages], arrivals);
  }
  // Waits for the products that have been issued.
  __device__ static void waitProducts(int next) {
    if constexpr (!kLatePingPong<S>) pingPongArrive(next);
    wgmmaWait<0>();
    if constexpr (kLatePingPong<S>) pingPongArrive(next);
  }
};

// The softmax of a step's first kCount keys.
template <int kCount, typename S>
__device__ void computeStepWeights(const AttentionParams& p, Sm90Rows<S>& rows, Window window, KeyOffsets offsets,
                                   DistanceTable table, float slope, ItemFlags flags, float scale_log2, int step) {
  const bool first = step == 0;
  if constexpr (S::kPositionMode == PositionMode::kNone) {
    rows.template computeWeights<kCount>(scale_log2, first);
  } else {
    const int key_block = keyBlockOfStep<S>(offsets.diagonal, flags.split + step * flags.splits);
    const int first_distance = offsets.first_distance + key_block * S::kKeys;
    maskOutside<kCount>(rows, window, first_distance);
    float step_sums[2];
    if constexpr (S::kPositionMode == PositionMode::kWindow) {
      rows.template startStep<kCount>(scale_log2, first, NoBias{}, step_sums);
    } else if constexpr (S::kPositionMode == PositionMode::kSlope) {
      const float distance = static_cast<float>(laneDistance(first_distance));
      rows.template startStep<kCount>(scale_log2, first, SlopeBias{slope, distance}, step_sums);
    } else {
      const bool before = first_distance + kCount - 1 <= -p.bias_range;
      if (before || first_distance - (kWarpRows - 1) >= p.bias_range) {
        const float end = *sharedPointer<float>(table.address(before ? -table.reach : table.reach));
        rows.template startStep<kCount>(scale_log2, first, EndBias{end}, step_sums);
      } else {
        rows.template startStep<kCount>(scale_log2, first, TableBias{table.address(laneDistance(first_distance))},
                                        step_sums);
      }
    }
    rows.template endStep<kCount>(scale_log2, step_sums);
  }
}

// Where two warpgroups split the keys of the same rows: the first adds the other's results to its own.
template <typename S>
__device__ void combineSplits(Sm90Rows<S>& rows, const Sm90Memory<S>& memory, int split, int group_thread,
                              float scale_log2) {
  float* const partial = sharedPointer<float>(memory.exchange()) + group_thread;
  if (split > 0) rows.store(partial);
  namedBarrier(kCombineBarrier, 2 * kWarpgroup);
  if (split == 0) rows.combine(partial, scale_log2);
  namedBarrier(kCombineBarrier, 2 * kWarpgroup);
}

// Weights of the last stage times the values of its first kLast keys. Rows of V beyond the sequence become zeros.
template <int kLast, typename S>
__device__ void multiplyLastValues(Sm90Rows<S>& rows, const ConsumerBarriers<S>& barriers, const Sm90Memory<S>& memory,
                                   int stage, int last_keys, int group_thread, int next) {
  barriers.waitValues(stage);
  if (last_keys < kLast) {
    zeroValues<S>(sharedPointer<unsigned char>(memory.value(stage % S::kStages)),
                  last_keys * S::kRowChunks + group_thread, kLast);
    namedBarrier(kGroupBarrier + barriers.group, kWarpgroup);
  }
  barriers.pingPongWait();
  issueValues<kLast>(rows, memory.value(stage % S::kStages));
  barriers.waitProducts(next);
}

// Where an item's keys are, if the shape has positions.
template <typename S>
__device__ KeyOffsets keyOffsetsOf(const AttentionWorkItem& item, int group_thread) {
  if constexpr (S::kPositionMode == PositionMode::kNone) return {};
  return {uniform(item.begin - item.first - group_thread / kWarpSize * kWarpRows), uniform(item.diagonal)};
}

// Where the biases of an item's head will be, if the shape has a table.
template <typename S>
__device__ DistanceTable distanceTableOf(const AttentionParams& p, const Sm90Memory<S>& memory, int group) {
  if constexpr (S::kPositionMode != PositionMode::kDistance) return {};
  return {memory.table(group, S::tableEntries(p.bias_range)), p.bias_range + S::kTableReach};
}

// All threads have read the previous item's table: they met at a barrier after its last softmax, before they
// multiplied.
template <typename S>
__device__ void fillDistanceTable(const AttentionParams& p, int head, const DistanceTable& table, int group) {
  if constexpr (S::kPositionMode != PositionMode::kDistance) return;
  fillTable(p, head, table);
  namedBarrier(kGroupBarrier + group, kWarpgroup);
}

// Rows of all heads become zeros: those of filler tokens.
__device__ __forceinline__ void zeroWholeRows(const AttentionParams& p, int token, int rows, int group_thread) {
  const int chunks = p.H * p.D / 8;
  const int64_t first = static_cast<int64_t>(token) * chunks;
  for (int i = group_thread; i < rows * chunks; i += kWarpgroup) zeroChunk(p, first + i);
}

// Passes over the stages after a group's own last step, which other groups of the block still read.
template <typename S>
__device__ __forceinline__ void passIdleSteps(const ConsumerBarriers<S>& barriers, const AttentionWorkItem& item,
                                              int stage_index, int stride, int group_thread, const ItemFlags& flags) {
  if constexpr (S::kEndsByGroup) {
    for (int idle = uniform(item.idle_steps); idle > 0; --idle) {
      stage_index += stride;
      barriers.waitKeys(stage_index);
      // All warps have seen the keys before they are released: one that had not would miss their phase of the barrier.
      if constexpr (!S::kTakesTurns) namedBarrier(kGroupBarrier + barriers.group, kWarpgroup);
      barriers.pingPongPass(flags.next);
      barriers.releaseStage(stage_index, group_thread, flags.arrivals);
    }
  }
}

// Works through the items of one warpgroup. Warpgroups feed the tensor cores in ping-pong: otherwise all would multiply
// at the same time and then all compute exponentials at the same time (FlashAttention-3, section 3.1). A warpgroup
// waits at barrier kPingPongBarrier + group, at which the one before it arrives when it is done.
template <typename S>
__device__ void consumeAttention(const AttentionParams& p, Sm90Shared<S>& shared, const Sm90Memory<S>& memory,
                                 int group) {
  const int group_thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % kWarpSize;
  const float scale_log2 = p.scale * kLog2E, slope_unit = -1.f / p.scale;
  const Window window = windowOf(p);
  const ConsumerBarriers<S> barriers{shared, group};
  if (group == kTaskWidth - 1) barriers.pingPongArrive(0);  // warpgroup 0 begins

  for (int item_number = 0;; ++item_number) {
    const int slot = item_number % S::kQuerySlots;
    const unsigned query = memory.query(slot, group);
    barrierWait(&shared.queries[slot][group], item_number / S::kQuerySlots & 1);
    const AttentionWorkItem& item = shared.items[item_number % kItemSlots][group];
    const int steps = uniform(item.steps);
    if (item.rows <= 0) {
      if (item.rows < 0) return;
      barriers.releaseQueries(slot, lane);
      zeroWholeRows(p, item.token, steps, group_thread);
      continue;
    }
    int issued_stages = loadShared(&shared.issued_stages);
    int stage_index = uniform(item.stage);
    const int stride = uniform(item.stride), last_keys = uniform(item.last_keys);
    const ItemFlags flags = unpackFlags(uniform(item.flags));
    const KeyOffsets offsets = keyOffsetsOf<S>(item, group_thread);
    const DistanceTable table = distanceTableOf<S>(p, memory, group);
    const float slope = S::kPositionMode == PositionMode::kSlope ? p.slopes[item.head] * slope_unit : 0.f;
    if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(query), item.head, group);

    Sm90Rows<S> rows;
    rows.clearOutput();
    const unsigned q = panelDescriptor(query);
    const auto softmaxStep = [&](auto keys, int step) {
      computeStepWeights<decltype(keys)::value>(p, rows, window, offsets, table, slope, flags, scale_log2, step);
    };
    // The last stage's first keys.value keys.
    const auto processLastStage = [&](auto keys) {
      constexpr int kLast = decltype(keys)::value;
      if (last_keys < kLast) rows.template maskFrom<kLast, kLast - S::kKeys / 2>(last_keys, lane);
      softmaxStep(keys, steps - 1);
      multiplyLastValues<kLast>(rows, barriers, memory, stage_index, last_keys, group_thread, flags.next);
    };
    while (stage_index >= issued_stages + S::kStages) issued_stages = loadShared(&shared.issued_stages);
    barriers.waitKeys(stage_index);
    barriers.pingPongWait();
    issueKeys(rows, q, memory.key(stage_index % S::kStages));
    if constexpr (!kLatePingPong<S>) barriers.pingPongArrive(flags.next);
    fillDistanceTable<S>(p, item.head, table, group);
    wgmmaWait<0>();
    if constexpr (kLatePingPong<S>) barriers.pingPongArrive(flags.next);
    for (int steps_left = steps - 1; steps_left > 0; --steps_left) {
      softmaxStep(Keys<S::kKeys>{}, steps - 1 - steps_left);
      barriers.waitValues(stage_index);
      barriers.waitKeys(stage_index + stride);
      barriers.pingPongWait();
      issueValues<S::kKeys>(rows, memory.value(stage_index % S::kStages));
      issueKeys(rows, q, memory.key((stage_index + stride) % S::kStages));
      barriers.waitProducts(flags.next);
      barriers.releaseStage(stage_index, group_thread, flags.arrivals);
      stage_index += stride;
    }
    barriers.releaseQueries(slot, lane);
    if (last_keys <= S::kKeys / 2) {
      processLastStage(Keys<S::kKeys / 2>{});
    } else {
      processLastStage(Keys<S::kKeys>{});
    }
    barriers.releaseStage(stage_index, group_thread, flags.arrivals);
    if (flags.idle_step) barriers.pingPongPass(flags.next);
    passIdleSteps(barriers, item, stage_index, stride, group_thread, flags);

    rows.addUpSums();
    if (flags.splits > 1) {
      combineSplits(rows, memory, flags.split, group_thread, scale_log2);
      if (flags.split > 0) continue;
    }
    storeRows<S>(p, item, rows);
  }
}

}  // namespace padfree
