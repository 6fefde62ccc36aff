// SPDX-License-Identifier: Apache-2.0
// The computing warpgroups of the Hopper attention kernel.
#pragma once

#include "attention/sm90/positions.cuh"
#include "attention/sm90/rows.cuh"

namespace padfree {

// Where the keys of a work item's steps are: see TaskKeys.
struct KeyOffsets {
  int nearest;  // from the warp's first row to the task's first key
  int diagonal;
};

// Whether a warpgroup lets the next one multiply when its products are done, not when they are issued: small ones that
// run side by side hold up each other's softmax.
template <typename S>
constexpr bool kLatePingPong = S::kD <= 32;

// Works through the items of one warpgroup. Warpgroups feed the tensor cores in ping-pong: otherwise all would multiply
// at the same time and then all compute exponentials at the same time (FlashAttention-3, section 3.1). A warpgroup
// waits at barrier kPingPongBarrier + group, at which the one before it arrives when it is done.
template <typename S>
__device__ void consumeAttention(const AttentionParams& p, Sm90Shared<S>& shared, const Sm90Memory<S>& memory,
                                 int group) {
  const int in_group = threadIdx.x % kWarpgroup, lane = threadIdx.x % kWarpSize;
  const float scale_log2 = p.scale * kLog2E;
  const float slope_unit = -1.f / p.scale;
  const Window window = windowOf(p);
  if (group == kTaskWidth - 1) namedArrive(kPingPongBarrier, 2 * kWarpgroup);  // warpgroup 0 begins

  for (int item_number = 0;; ++item_number) {
    const int slot = item_number % S::kQuerySlots;
    const unsigned query = memory.query(slot, group);
    barrierWait(&shared.queries[slot][group], item_number / S::kQuerySlots & 1);
    const AttentionWorkItem& item = shared.items[item_number % kItemSlots][group];
    const int steps = uniform(item.steps);
    if (item.rows <= 0) {
      if (item.rows < 0) return;
      __syncwarp();
      if (lane == 0) barrierArrive(&shared.queries_free[slot][group]);
      const int chunks = p.H * p.D / 8;
      const int64_t first = static_cast<int64_t>(item.token) * chunks;
      for (int i = in_group; i < steps * chunks; i += kWarpgroup) zeroChunk(p, first + i);
      continue;
    }
    int issued = loadShared(&shared.issued);
    int number = uniform(item.stage);
    const int stride = uniform(item.stride), last_keys = uniform(item.last_keys);
    const ItemFlags flags = unpackFlags(uniform(item.flags));
    KeyOffsets offsets{};
    if constexpr (S::kPositionMode != PositionMode::kNone) {
      offsets = {uniform(item.begin - item.first - in_group / kWarpSize * kWarpRows), uniform(item.diagonal)};
    }
    DistanceTable table{};
    if constexpr (S::kPositionMode == PositionMode::kDistance) {
      table = {memory.table(group, S::tableEntries(p.bias_range)), p.bias_range + S::kTableReach};
    }
    float slope = 0.f;
    if constexpr (S::kPositionMode == PositionMode::kSlope) slope = p.slopes[item.head] * slope_unit;
    if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(query), item.head, group);

    Sm90Rows<S> rows;
    rows.clearOutput();
    const unsigned q = panelDescriptor(query);
    const auto waitKeys = [&](int n) { barrierWait(&shared.keys[n % S::kKeyBarriers], n / S::kKeyBarriers & 1); };
    const auto waitValues = [&](int n) { barrierWait(&shared.values[n % S::kStages], n / S::kStages & 1); };
    const auto pingPongWait = [&] { namedBarrier(kPingPongBarrier + group, 2 * kWarpgroup); };
    const auto pingPongArrive = [&] { namedArrive(kPingPongBarrier + flags.next, 2 * kWarpgroup); };
    const auto waitProducts = [&] {
      if constexpr (!kLatePingPong<S>) pingPongArrive();
      wgmmaWait<0>();
      if constexpr (kLatePingPong<S>) pingPongArrive();
    };
    const auto issueKeys = [&](int n) {
      const unsigned k = panelDescriptor(memory.key(n % S::kStages));
      wgmmaFence();
      multiplyKeys<S>(rows.scores, q, k);
      wgmmaCommit();
    };
    const auto issueValues = [&](auto keys) {
      const unsigned v = panelDescriptor(memory.value(number % S::kStages));
      wgmmaFence();
      multiplyValues<S, 0, decltype(keys)::value / 16>(rows.output, rows.weights, v, true);
      wgmmaCommit();
    };
    const auto release = [&] {
      if (in_group == 0) barrierArrive(&shared.empty[number % S::kStages], flags.arrivals);
    };

    // The softmax of the item's step with this number.
    const auto weigh = [&](auto keys, int step) {
      constexpr int kCount = decltype(keys)::value;
      const bool first = step == 0;
      if constexpr (S::kPositionMode == PositionMode::kNone) {
        rows.template weighStep<kCount>(scale_log2, first);
      } else {
        const int key_block = keyBlockOfStep<S>(offsets.diagonal, flags.split + step * flags.splits);
        const int nearest = offsets.nearest + key_block * S::kKeys;
        maskOutside<kCount>(rows, window, nearest);
        float added[2];
        if constexpr (S::kPositionMode == PositionMode::kWindow) {
          rows.template startStep<kCount>(scale_log2, first, NoBias{}, added);
        } else if constexpr (S::kPositionMode == PositionMode::kSlope) {
          const float distance = static_cast<float>(laneDistance(nearest));
          rows.template startStep<kCount>(scale_log2, first, SlopeBias{slope, distance}, added);
        } else {
          const bool before = nearest + kCount - 1 <= -p.bias_range;
          if (before || nearest - (kWarpRows - 1) >= p.bias_range) {
            const float end = *sharedPointer<float>(table.address(before ? -table.reach : table.reach));
            rows.template startStep<kCount>(scale_log2, first, EndBias{end}, added);
          } else {
            rows.template startStep<kCount>(scale_log2, first, TableBias{table.address(laneDistance(nearest))}, added);
          }
        }
        rows.template endStep<kCount>(scale_log2, added);
      }
    };

    // The last stage, of which only the first keys.value keys are looked at: mask, weigh, multiply. Its rows of V
    // beyond the sequence become zeros.
    const auto processLastStage = [&](auto keys) {
      constexpr int kLast = decltype(keys)::value;
      if (last_keys < kLast) rows.template maskFrom<kLast, kLast - S::kKeys / 2>(last_keys, lane);
      weigh(keys, steps - 1);
      waitValues(number);
      if (last_keys < kLast) {
        zeroValues<S>(sharedPointer<unsigned char>(memory.value(number % S::kStages)),
                      last_keys * S::kRowChunks + in_group, kLast);
        namedBarrier(kGroupBarrier + group, kWarpgroup);
      }
      pingPongWait();
      issueValues(keys);
      waitProducts();
    };
    while (number >= issued + S::kStages) issued = loadShared(&shared.issued);
    waitKeys(number);
    pingPongWait();
    issueKeys(number);
    if constexpr (!kLatePingPong<S>) pingPongArrive();
    if constexpr (S::kPositionMode == PositionMode::kDistance) {
      // All have read the last item's: they met after its last softmax, to multiply.
      fillTable(p, item.head, table);
      namedBarrier(kGroupBarrier + group, kWarpgroup);
    }
    wgmmaWait<0>();
    if constexpr (kLatePingPong<S>) pingPongArrive();
    for (int left = steps - 1; left > 0; --left) {
      weigh(Keys<S::kKeys>{}, steps - 1 - left);
      waitValues(number);
      waitKeys(number + stride);
      pingPongWait();
      issueValues(Keys<S::kKeys>{});
      issueKeys(number + stride);
      waitProducts();
      release();
      number += stride;
    }
    __syncwarp();
    if (lane == 0) barrierArrive(&shared.queries_free[slot][group]);
    if (last_keys <= S::kKeys / 2) {
      processLastStage(Keys<S::kKeys / 2>{});
    } else {
      processLastStage(Keys<S::kKeys>{});
    }
    release();
    if (flags.idle_step) {
      pingPongWait();
      pingPongArrive();
    }

    rows.addUpSums();
    if (flags.splits > 1) {
      float* const share = sharedPointer<float>(memory.exchange()) + in_group;
      if (flags.split > 0) rows.store(share);
      namedBarrier(kCombineBarrier, 2 * kWarpgroup);
      if (flags.split == 0) rows.combine(share, scale_log2);
      namedBarrier(kCombineBarrier, 2 * kWarpgroup);
      if (flags.split > 0) continue;
    }
    storeRows<S>(p, item, rows);
  }
}

}  // namespace padfree
