// SPDX-License-Identifier: Apache-2.0
// Where a token is, found from lengths, by kernels that do not wait for the offsets of their schedule.
#pragma once

#include "common/device.cuh"

namespace padfree {

struct TokenPosition {
  int in_sequence;
  bool filler;
};

// The position of a token in one of B sequences, at most kWarpSize, whose lengths are divided among the lanes of an
// aligned group of kLanes.
template <int kLanes>
__device__ inline TokenPosition positionAmong(const int* seq_lens, int B, int T, int token) {
  constexpr int kEach = kWarpSize / kLanes;
  const int lane = threadIdx.x % kLanes;
  const unsigned group = (kFullMask >> (kWarpSize - kLanes)) << (threadIdx.x % kWarpSize - lane), limit = T;
  unsigned ends[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int b = lane * kEach + i;
    const unsigned length = b < B ? max(seq_lens[b], 0) : 0;
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

}  // namespace padfree
