// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "attention/task.h"
#include "common/types.h"

namespace padfree {

struct ScheduleParams {
  const int* seq_lens;   // [B]; a negative length counts as 0
  int* cu_seqlens;       // [B+1], starts at 0, never falls, never above T
  int* token_index;      // [T] or null: b*S + s of each token, -1 for filler and for s >= S
  int* positions;        // [T] or null: s of each token, 0 for filler
  AttentionTask* tasks;  // [num_tasks+1] or null: the tasks of an attention with H heads, longest first, then filler
  int B, T;
  int S;                        // padded length, read only when token_index is given
  int H;                        // at most kMaxTaskHeads, read as the following only when tasks is given
  int num_tasks;                // room for so many; num_tasks + 1 is at least taskListEntries(T, B, H)
  int num_sms;                  // multiprocessors that the tasks are cut for; 0: those of the current device
  const int* prefix = nullptr;  // [B] or null: sequences that positions continue from, as attention's keys do
  bool causal = false;          // whether rows see no keys after them: orders tasks by what they then cost
};

constexpr int kMaxTaskHeads = 4096;

// Prefix sum of the lengths, clamped to T, and on demand the padded slot of every token, its position in its sequence,
// and the attention's tasks.
cudaError_t launchSchedule(const ScheduleParams& params, cudaStream_t stream);

// Completes and checks what tasks are made by, for kernels that make a schedule themselves (schedule/block.cuh);
// `params` are left alone where no tasks are wanted.
cudaError_t prepareSchedule(ScheduleParams& params);

}  // namespace padfree
