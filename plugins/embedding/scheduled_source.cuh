// SPDX-License-Identifier: Apache-2.0
// Rows of tables beside the schedule: one block makes offsets and tasks, while the others find their tokens' positions
// by themselves.
#pragma once

#include "embedding/table_source.cuh"
#include "schedule/block.cuh"
#include "schedule/token_position.cuh"

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

  template <int kLanes>
  __device__ TokenPosition positionOf(int token) const {
    return positionAmong<kLanes>(schedule.seq_lens, this->p.B, this->p.T, token);
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
