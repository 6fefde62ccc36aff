// SPDX-License-Identifier: Apache-2.0
// Sequences that continue another one of their batch: a prefix that several sequences share is computed once.
#pragma once

#include "common/device.cuh"

namespace padfree {

// The tokens that come before those of a sequence; length 0: none do.
struct Prefix {
  int begin, length;
};

// prefix: [B]; whatever is not the number of another sequence means none. The prefix of that sequence does not matter.
__device__ inline Prefix prefixOf(const int* prefix, const int* cu_seqlens, int B, int T, int sequence) {
  const int parent = prefix[sequence];
  if (parent < 0 || parent >= B || parent == sequence) return {0, 0};
  const int begin = sequenceStart(cu_seqlens, parent, T);
  return {begin, max(sequenceStart(cu_seqlens, parent + 1, T) - begin, 0)};
}

}  // namespace padfree
