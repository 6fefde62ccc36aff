// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "schedule/launch.h"
#include "schedule/scan.cuh"
#include "schedule/tasks.cuh"

namespace padfree {
namespace {

constexpr int kTokenThreads = 256;

// One block; every warp has a run of neighbouring sequences. Sums stop at T. Every warp issues every instruction, on
// one multiprocessor: so there are no more warps than pay, what is done twice is a loop of two rounds, and votes tell
// the compiler that the threads of a warp stay together (docs/notes/2026-11-27-first-and-last-kernels.md).
__global__ void __launch_bounds__(kThreads, 1) scheduleKernel(ScheduleParams p) {
  __shared__ unsigned scratch[kWarps];
  __shared__ TaskMemory task_memory;
  if (p.tasks) clearTaskMemory(task_memory);
  waitForPriorGrids();
  releaseNextGrid();
  const int lane = threadIdx.x % kWarpSize;
  const WarpShare share(p.B);
  const unsigned most = max(p.T, 0);

  if (threadIdx.x == 0) p.cu_seqlens[0] = 0;
  LaneSequence first_sequence{};
  int groups = 0;
  unsigned before = 0, total = 0;
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {  // sums of the warps, then the offsets themselves
    unsigned sum = before;
#pragma unroll 1
    for (int first = share.begin; share.has(first); first += kWarpSize) {
      const int b = first + lane;
      const unsigned length = b < share.end ? min(static_cast<unsigned>(max(p.seq_lens[b], 0)), most) : 0;
      const unsigned end = min(sum + warpInclusiveSum(length, most), most), ahead = __shfl_up_sync(kFullMask, end, 1);
      if (round == 1) {
        const LaneSequence sequence{static_cast<int>(lane > 0 ? ahead : sum), static_cast<int>(end)};
        if (b < share.end) p.cu_seqlens[b + 1] = sequence.end;
        if (first == share.begin) first_sequence = sequence;
        groups += ceilDiv(sequence.end - sequence.begin, kTaskRows);
      }
      sum = __shfl_sync(kFullMask, end, kWarpSize - 1);
    }
    if (round == 0) before = sumBefore(sum, most, scratch, total);
  }
  if (p.tasks) listTasks(p, share, first_sequence, groups, total, task_memory);
}

// One thread a token.
__global__ void __launch_bounds__(kTokenThreads) tokenPlaceKernel(ScheduleParams p) {
  waitForPriorGrids();
  releaseNextGrid();
  const int t = blockIdx.x * kTokenThreads + threadIdx.x;
  if (t >= p.T) return;
  int first = 0, last = p.B + 1;  // the last sequence that starts at or before t
  while (last - first > 1) {
    const int middle = first + (last - first) / 2;
    (p.cu_seqlens[middle] <= t ? first : last) = middle;
  }
  const int s = t - p.cu_seqlens[first];
  if (p.token_index) p.token_index[t] = first < p.B && s < p.S ? first * p.S + s : -1;
  if (p.positions) p.positions[t] = first < p.B ? s : 0;
}

// Completes what the tasks are made by; `params` are left alone where no tasks are wanted.
cudaError_t prepareTasks(ScheduleParams& params) {
  if (!params.tasks) return cudaSuccess;
  const int64_t needed = taskListEntries<int64_t>(params.T, params.B, params.H);
  if (params.H <= 0 || params.H > kMaxTaskHeads || params.num_tasks + int64_t{1} < needed) return cudaErrorInvalidValue;
  if (params.num_sms == 0) {
    const cudaError_t status = countMultiprocessors(params.num_sms);
    if (status != cudaSuccess) return status;
  }
  params.num_sms = std::min(params.num_sms, kMaxFewTasks / kTaskWidth);
  return cudaSuccess;
}

}  // namespace

cudaError_t launchSchedule(const ScheduleParams& given, cudaStream_t stream) {
  ScheduleParams params = given;
  cudaError_t status = prepareTasks(params);
  if (status == cudaSuccess) status = launchDependent(scheduleKernel, 1, kThreads, 0, stream, params);
  if (status != cudaSuccess || (!params.token_index && !params.positions) || params.T <= 0) return status;
  return launchDependent(tokenPlaceKernel, ceilDiv(params.T, kTokenThreads), kTokenThreads, 0, stream, params);
}

}  // namespace padfree
