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

// One block; every warp has a run of neighbouring sequences. Sums saturate at T.
__global__ void __launch_bounds__(kThreads, 1) scheduleKernel(ScheduleParams p) {
  __shared__ int64_t scratch[kWarps];
  __shared__ TaskMemory task_memory;
  if (p.tasks) clearTaskMemory(task_memory);
  waitForPriorGrids();
  releaseNextGrid();
  const int lane = threadIdx.x % kWarpSize;
  const WarpShare share(p.B);
  const auto lengthOf = [&](int b) { return b < share.end ? int64_t{min(max(p.seq_lens[b], 0), p.T)} : 0; };
  const auto saturate = [&](int64_t sum) { return static_cast<int>(min(sum, static_cast<int64_t>(p.T))); };

  const int64_t first_length = lengthOf(share.begin + lane);
  int64_t own = first_length, total;
  for (int b = share.begin + kWarpSize + lane; b < share.end; b += kWarpSize) own += lengthOf(b);
  int64_t carry = __shfl_sync(kFullMask, blockInclusiveSum(own, scratch, total) - own, 0);

  if (threadIdx.x == 0) p.cu_seqlens[0] = 0;
  LaneSequence first_sequence{};
  int groups = 0;
  for (int first = share.begin; first < share.end; first += kWarpSize) {
    const int b = first + lane;
    const int64_t length = first == share.begin ? first_length : lengthOf(b), sum = carry + warpInclusiveSum(length);
    const LaneSequence sequence{saturate(sum - length), saturate(sum)};
    if (b < share.end) p.cu_seqlens[b + 1] = sequence.end;
    if (first == share.begin) first_sequence = sequence;
    groups += ceilDiv(sequence.end - sequence.begin, kTaskRows);
    carry = __shfl_sync(kFullMask, sum, kWarpSize - 1);
  }
  if (p.tasks) listTasks(p, share, first_sequence, groups, saturate(total), task_memory);
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
