// SPDX-License-Identifier: Apache-2.0
// What one block does for a schedule: alone, or beside the blocks of a kernel that reads lengths.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "schedule/launch.h"
#include "schedule/scan.cuh"
#include "schedule/tasks.cuh"

namespace padfree {

// Offsets and, where they are wanted, tasks, by a block of kWarps warps, each with a run of neighbouring sequences.
// Sums stop at T. All warps issue all instructions on one multiprocessor: so what is done twice is a loop of two
// rounds, which keeps the code short, and votes tell the compiler that the threads of a warp stay together.
template <int kWarps>
__device__ void makeSchedule(const ScheduleParams& p) {
  __shared__ unsigned scratch[kWarps];
  __shared__ TaskMemory<kWarps> task_memory;
  if (p.tasks) clearTaskMemory(task_memory);
  waitForPriorGrids();
  releaseNextGrid();
  const int lane = threadIdx.x % kWarpSize;
  const WarpRange range(p.B, kWarps);
  const unsigned limit = max(p.T, 0);

  if (threadIdx.x == 0) p.cu_seqlens[0] = 0;
  LaneSequence first_sequence{};
  int groups = 0;
  unsigned before = 0, total = 0;
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {  // sums of the warps, then the offsets themselves
    unsigned sum = before;
#pragma unroll 1
    for (int first = range.begin; range.has(first); first += kWarpSize) {
      const int b = first + lane;
      const unsigned length = b < range.end ? min(static_cast<unsigned>(max(p.seq_lens[b], 0)), limit) : 0;
      const unsigned end = min(sum + warpInclusiveSum(length, limit), limit),
                     previous_end = __shfl_up_sync(kFullMask, end, 1);
      if (round == 1) {
        const LaneSequence sequence{static_cast<int>(lane > 0 ? previous_end : sum), static_cast<int>(end)};
        if (b < range.end) p.cu_seqlens[b + 1] = sequence.end;
        if (first == range.begin) first_sequence = sequence;
        groups += ceilDiv(sequence.end - sequence.begin, kTaskRows);
      }
      sum = __shfl_sync(kFullMask, end, kWarpSize - 1);
    }
    if (round == 0) before = blockExclusiveSum(sum, limit, scratch, total);
  }
  if (!p.tasks) return;
  if (p.causal) {
    listTasks<true>(p, range, first_sequence, groups, total, task_memory);
  } else {
    listTasks<false>(p, range, first_sequence, groups, total, task_memory);
  }
}

}  // namespace padfree
