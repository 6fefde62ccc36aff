// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "attention/prefix.cuh"
#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "schedule/block.cuh"
#include "schedule/launch.h"

namespace padfree {
namespace {

constexpr int kTokenThreads = 256;
constexpr int kScheduleThreads = 512;

// More warps than these do not pay.
__global__ void __launch_bounds__(kScheduleThreads, 1) scheduleKernel(ScheduleParams p) {
  makeSchedule<kScheduleThreads / kWarpSize>(p);
}

// One thread per token.
__global__ void __launch_bounds__(kTokenThreads) tokenPositionKernel(ScheduleParams p) {
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
  if (p.positions) {
    const int before = p.prefix && first < p.B ? prefixOf(p.prefix, p.cu_seqlens, p.B, p.T, first).length : 0;
    p.positions[t] = first < p.B ? before + s : 0;
  }
}

}  // namespace

cudaError_t prepareSchedule(ScheduleParams& params) {
  if (!params.tasks) return cudaSuccess;
  const int64_t entries = taskListEntries<int64_t>(params.T, params.B, params.H);
  if (params.H <= 0 || params.H > kMaxTaskHeads || params.num_tasks + int64_t{1} < entries)
    return cudaErrorInvalidValue;
  if (params.num_sms == 0) {
    const cudaError_t status = countMultiprocessors(params.num_sms);
    if (status != cudaSuccess) return status;
  }
  params.num_sms = std::min(params.num_sms, kMaxFewTasks / kTaskWidth);
  return cudaSuccess;
}

cudaError_t launchSchedule(const ScheduleParams& request, cudaStream_t stream) {
  ScheduleParams params = request;
  cudaError_t status = prepareSchedule(params);
  if (status == cudaSuccess) status = launchDependent(scheduleKernel, 1, kScheduleThreads, 0, stream, params);
  if (status != cudaSuccess || (!params.token_index && !params.positions) || params.T <= 0) return status;
  return launchDependent(tokenPositionKernel, ceilDiv(params.T, kTokenThreads), kTokenThreads, 0, stream, params);
}

}  // namespace padfree
