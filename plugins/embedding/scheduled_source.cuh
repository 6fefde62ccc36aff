// SPDX-License-Identifier: Apache-2.0
// Rows of tables beside the schedule: one block makes offsets and tasks, while the others find their tokens' positions
// by themselves.
#pragma once

#include "embedding/table_source.cuh"
#include "schedule/block.cuh"

namespace padfree {

// For up to kWarpSize sequences. As two kernels of about 4 us each, the embedding would begin 3 us after its schedule
// (H200).
template <typename T>
struct ScheduledSource : TableSource<T> {
  static constexpr bool kMayReadEarly = false;
  static constexpr bool kHasBlocksAhead = true;

  ScheduleParams schedule;

  ScheduledSource(const EmbeddingRows& params, const ScheduleParams& schedule)
      : TableSource<T>(params), schedule(schedule) {}

  __host__ __device__ unsigned blocksAhead() const { return 1; }

  template <typename Norm>
  __device__ void runBlockAhead(const Norm&) const {
    makeSchedule<kRowNormThreads / kWarpSize>(schedule);
  }

  __device__ bool readsEarly() const { return false; }

  __device__ void prefetch() const {
    TableSource<T>::prefetch();
    prefetchToL2(schedule.seq_lens, this->p.B * sizeof(int));
  }

  // The position of a token, from the lengths of up to kWarpSize sequences, divided among the lanes of an aligned
  // group.
  template <int kLanes>
  __device__ typename TableSource<T>::TokenPosition positionOf(int token) const {
    constexpr int kEach = kWarpSize / kLanes;
    const int lane = threadIdx.x % kLanes;
    const unsigned group = (kFullMask >> (kWarpSize - kLanes)) << (threadIdx.x % kWarpSize - lane), limit = this->p.T;
    unsigned ends[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int b = lane * kEach + i;
      const unsigned length = b < this->p.B ? max(schedule.seq_lens[b], 0) : 0;
      ends[i] = sum = min(sum + min(length, limit), limit);
    }
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) {
      const unsigned below = __shfl_up_sync(group, sum, offset, kLanes);
      if (lane >= offset) sum = min(sum + below, limit);
    }
    const unsigned before = __shfl_up_sync(group, sum, 1, kLanes);
    int ended_sequences = 0;  // sequences that end at or before the token
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane > 0) ends[i] = min(before + ends[i], limit);
      ended_sequences += __popc(__ballot_sync(group, ends[i] <= static_cast<unsigned>(token)));
    }
    const int last = max(ended_sequences - 1, 0);
    unsigned start = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned end = __shfl_sync(group, ends[i], last / kEach, kLanes);
      if (last % kEach == i) start = end;
    }
    return {ended_sequences > 0 ? token - static_cast<int>(start) : token, ended_sequences == kWarpSize};
  }

  template <int kLanes>
  __device__ bool begin(int64_t row, const T* (&addends)[TableSource<T>::kAddends]) const {
    const int token = static_cast<int>(row);
    const int word = this->p.ids[token], later_word = this->laterWord(token);
    const int type = this->p.token_types ? this->p.token_types[token] : -1;
    const auto token_position = positionOf<kLanes>(token);
    this->prefetchWord(later_word, threadIdx.x % kLanes, kLanes);
    this->setAddends(word, token_position.in_sequence + this->p.position_offset, type, addends);
    return !token_position.filler;
  }
};

}  // namespace padfree
