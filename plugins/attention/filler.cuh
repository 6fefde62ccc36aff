// SPDX-License-Identifier: Apache-2.0
// Rows of y that no sequence owns: they become zeros.
#pragma once

#include "attention/launch.h"

namespace padfree {

// Results 8 * chunk to 8 * chunk + 7 of y.
__device__ inline void zeroChunk(const AttentionParams& p, int64_t chunk) {
  if (p.e4m3_factor > 0.f) {
    static_cast<uint2*>(p.y)[chunk] = uint2{};
  } else {
    static_cast<uint4*>(p.y)[chunk] = uint4{};
  }
}

// Rows of a head, from a token's on. The block's first kThreads threads.
template <int kThreads>
__device__ void zeroRows(const AttentionParams& p, int head, int token, int rows) {
  const int chunks = p.D / 8;
  const int64_t first = (static_cast<int64_t>(token) * p.H + head) * chunks;
  for (int i = threadIdx.x; i < rows * chunks; i += kThreads) {
    zeroChunk(p, first + static_cast<int64_t>(i / chunks) * p.H * chunks + i % chunks);
  }
}

}  // namespace padfree
