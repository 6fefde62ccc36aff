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

// One block: scans kThreads lengths at a time. Sums saturate at T, which also keeps them from overflowing.
__global__ void __launch_bounds__(kThreads) scheduleKernel(ScheduleParams p) {
  __shared__ int64_t scratch[kWarps];
  __shared__ TaskMemory task_memory;
  releaseNextGrid();
  if (p.tasks) clearTaskMemory(task_memory);
  waitForPriorGrids();
  const auto saturate = [&](int64_t sum) { return static_cast<int>(min(sum, static_cast<int64_t>(p.T))); };
  int64_t carry = 0, groups = 0;
  if (threadIdx.x == 0) p.cu_seqlens[0] = 0;
  for (int first = 0; first < p.B; first += kThreads) {
    const int b = first + threadIdx.x;
    const int64_t length = b < p.B ? min(max(p.seq_lens[b], 0), p.T) : 0;
    int64_t total;
    const int64_t sum = carry + blockInclusiveSum(length, scratch, total);
    const int begin = saturate(sum - length), end = saturate(sum);
    if (b < p.B) p.cu_seqlens[b + 1] = end;
    groups += ceilDiv(end - begin, kTaskRows);
    carry = saturate(carry + total);
  }
  if (p.tasks) {
    int64_t all_groups;
    blockInclusiveSum(groups, scratch, all_groups);  // also a barrier behind the sums
    listTasks(p, all_groups * p.H, task_memory);
  }
}

// One thread a token.
__global__ void __launch_bounds__(kTokenThreads) tokenIndexKernel(ScheduleParams p) {
  releaseNextGrid();
  waitForPriorGrids();
  const int t = blockIdx.x * kTokenThreads + threadIdx.x;
  if (t >= p.T) return;
  int first = 0, last = p.B + 1;  // the last sequence that starts at or before t
  while (last - first > 1) {
    const int middle = first + (last - first) / 2;
    (p.cu_seqlens[middle] <= t ? first : last) = middle;
  }
  const int s = t - p.cu_seqlens[first];
  p.token_index[t] = first < p.B && s < p.S ? first * p.S + s : -1;
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
  if (status != cudaSuccess || !params.token_index || params.T <= 0) return status;
  return launchDependent(tokenIndexKernel, ceilDiv(params.T, kTokenThreads), kTokenThreads, 0, stream, params);
}

}  // namespace padfree
