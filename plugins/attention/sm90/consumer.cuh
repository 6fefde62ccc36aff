// SPDX-License-Identifier: Apache-2.0
// The computing warpgroups of the Hopper attention kernel.
#pragma once

#include "attention/sm90/positions.cuh"
#include "attention/sm90/rows.cuh"

namespace padfree {

// What a job's steps need to know where their keys are: see TaskKeys.
struct JobPlaces {
  int nearest;  // from the warp's first row to the task's first key
  int diagonal;
};

// Whether a warpgroup passes its turn when its products are done, not when they are issued: small products that run
// side by side hold up each other's softmax.
template <typename S>
constexpr bool kLateTurns = S::kD <= 32;

// Works through the jobs of one warpgroup. Warpgroups feed the matrix unit in turns: without them all would multiply at
// the same time and then all compute exponentials at the same time (FlashAttention-3, section 3.1). A warpgroup waits
// for its turn at barrier kTurnBarrier + group, at which the one before it arrives when it passes its turn.
template <typename S>
__device__ void consumeAttention(const AttentionParams& p, Sm90Shared<S>& shared, const Sm90Memory<S>& memory,
                                 int group) {
  using T = typename S::T;
  const int in_group = threadIdx.x % kWarpgroup, lane = threadIdx.x % kWarpSize;
  const float scale_log2 = p.scale * kLog2E;
  const float slope_unit = -1.f / p.scale;
  const Window window = windowOf(p);
  if (group == kTaskWidth - 1) namedArrive(kTurnBarrier, 2 * kWarpgroup);  // the first turn is warpgroup 0's

  for (int number_of_job = 0;; ++number_of_job) {
    const int slot = number_of_job % S::kQuerySlots;
    const unsigned query = memory.query(slot, group);
    barrierWait(&shared.queries[slot][group], number_of_job / S::kQuerySlots & 1);
    const AttentionJob& job = shared.jobs[number_of_job % kJobSlots][group];
    const int steps = uniform(job.steps);
    if (job.rows <= 0) {
      if (job.rows < 0) return;
      __syncwarp();
      if (lane == 0) barrierArrive(&shared.queries_free[slot][group]);
      const int chunks = p.H * p.D / 8;
      const int64_t first = static_cast<int64_t>(job.token) * chunks;
      for (int i = in_group; i < steps * chunks; i += kWarpgroup) zeroChunk(p, first + i);
      continue;
    }
    int issued = loadShared(&shared.issued);
    int number = uniform(job.stage);
    const int stride = uniform(job.stride), last_keys = uniform(job.last_keys);
    const JobFlags flags = unpackFlags(uniform(job.flags));
    JobPlaces places{};
    if constexpr (S::kPlaces != Places::kNone) {
      places = {uniform(job.begin - job.first - in_group / kWarpSize * kWarpRows), uniform(job.diagonal)};
    }
    DistanceTable table{};
    if constexpr (S::kPlaces == Places::kDistance) {
      table = {memory.table(group, S::tableEntries(p.bias_range)), p.bias_range + S::kTableReach};
    }
    float slope = 0.f;
    if constexpr (S::kPlaces == Places::kSlope) slope = p.slopes[job.head] * slope_unit;
    if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(query), job.head, group);

    Sm90Rows<S> rows;
    rows.clearOutput();
    const unsigned q = panelDescriptor(query);
    const auto waitKeys = [&](int n) { barrierWait(&shared.keys[n % S::kKeyBarriers], n / S::kKeyBarriers & 1); };
    const auto waitValues = [&](int n) { barrierWait(&shared.values[n % S::kStages], n / S::kStages & 1); };
    const auto takeTurn = [&] { namedBarrier(kTurnBarrier + group, 2 * kWarpgroup); };
    const auto passTurn = [&] { namedArrive(kTurnBarrier + flags.next, 2 * kWarpgroup); };
    const auto waitProducts = [&] {
      if constexpr (!kLateTurns<S>) passTurn();
      wgmmaWait<0>();
      if constexpr (kLateTurns<S>) passTurn();
    };
    const auto multiplyKeys = [&](int n) {
      const unsigned k = panelDescriptor(memory.key(n % S::kStages));
      wgmmaFence();
#pragma unroll
      for (int d = 0; d < S::kD / 16; ++d) {
        wgmmaShared<T, S::kRowBytes>(rows.scores, q + ((d / 4 * S::kQueryPanelBytes + d % 4 * 32) >> 4),
                                     k + ((d / 4 * S::kKeyPanelBytes + d % 4 * 32) >> 4), d > 0);
      }
      wgmmaCommit();
    };
    const auto multiplyValues = [&](auto keys) {
      const unsigned v = panelDescriptor(memory.value(number % S::kStages));
      wgmmaFence();
#pragma unroll
      for (int n = 0; n < keys.value / 16; ++n) {
#pragma unroll
        for (int panel = 0; panel < S::kPanels; ++panel) {
          wgmmaRegisters<T>(rows.output[panel], rows.weights[n],
                            v + ((panel * S::kKeyPanelBytes + n * 16 * S::kRowBytes) >> 4), true);
        }
      }
      wgmmaCommit();
    };
    const auto release = [&] {
      if (in_group == 0) barrierArrive(&shared.empty[number % S::kStages], flags.arrivals);
    };

    // Weighs the job's step with this number.
    const auto weigh = [&](auto keys, int step) {
      constexpr int kCount = decltype(keys)::value;
      const bool first = step == 0;
      if constexpr (S::kPlaces == Places::kNone) {
        rows.template weighStep<kCount>(scale_log2, first);
      } else {
        const int place = placeOfStep<S>(places.diagonal, flags.split + step * flags.splits);
        const int nearest = places.nearest + place * S::kKeys;
        hideOutside<kCount>(rows, window, nearest);
        float added[2];
        if constexpr (S::kPlaces == Places::kWindow) {
          rows.template startStep<kCount>(scale_log2, first, NoBias{}, added);
        } else if constexpr (S::kPlaces == Places::kSlope) {
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
    const auto finish = [&](auto keys) {
      constexpr int kLast = decltype(keys)::value;
      if (last_keys < kLast) rows.template maskFrom<kLast, kLast - S::kKeys / 2>(last_keys, lane);
      weigh(keys, steps - 1);
      waitValues(number);
      if (last_keys < kLast) {
        unsigned char* values = sharedPointer<unsigned char>(memory.value(number % S::kStages));
        for (int i = last_keys * S::kRowChunks + in_group; i < kLast * S::kRowChunks; i += kWarpgroup) {
#pragma unroll
          for (int panel = 0; panel < S::kPanels; ++panel) {
            *reinterpret_cast<uint4*>(values + panel * S::kKeyPanelBytes + i * 16) = uint4{};
          }
        }
        fenceAsyncProxy();
        namedBarrier(kGroupBarrier + group, kWarpgroup);
      }
      takeTurn();
      multiplyValues(keys);
      waitProducts();
    };
    while (number >= issued + S::kStages) issued = loadShared(&shared.issued);
    waitKeys(number);
    takeTurn();
    multiplyKeys(number);
    if constexpr (!kLateTurns<S>) passTurn();
    if constexpr (S::kPlaces == Places::kDistance) {
      // All have read the last job's: they met behind its last softmax, to multiply.
      fillTable(p, job.head, table);
      namedBarrier(kGroupBarrier + group, kWarpgroup);
    }
    wgmmaWait<0>();
    if constexpr (kLateTurns<S>) passTurn();
    for (int left = steps - 1; left > 0; --left) {
      weigh(Keys<S::kKeys>{}, steps - 1 - left);
      waitValues(number);
      waitKeys(number + stride);
      takeTurn();
      multiplyValues(Keys<S::kKeys>{});
      multiplyKeys(number + stride);
      waitProducts();
      release();
      number += stride;
    }
    __syncwarp();
    if (lane == 0) barrierArrive(&shared.queries_free[slot][group]);
    if (last_keys <= S::kKeys / 2) {
      finish(Keys<S::kKeys / 2>{});
    } else {
      finish(Keys<S::kKeys>{});
    }
    release();
    if (flags.idle_turn) {
      takeTurn();
      passTurn();
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
    storeRows<S>(p, job, rows);
  }
}

}  // namespace padfree
