// SPDX-License-Identifier: Apache-2.0
// What the kernels of PadfreePool share: which tokens a result is of, and where it goes.
#pragma once

#include "common/device.cuh"
#include "pool/launch.h"

namespace padfree {

// The tokens [first, last), rows of x, that a mode combines.
struct TokenRange {
  int first, last;
};

__device__ inline TokenRange tokenRangeOf(const PoolParams& p, int b) {
  if (p.mode == PoolMode::kEach) return {b, p.cu_seqlens[b] < p.cu_seqlens[b + 1] ? b + 1 : b};
  const int begin = sequenceStart(p.cu_seqlens, b, p.T);
  const int end = max(sequenceStart(p.cu_seqlens, b + 1, p.T), begin);
  return {p.mode == PoolMode::kLast ? max(end - 1, begin) : begin,
          p.mode == PoolMode::kFirst ? min(begin + 1, end) : end};
}

template <typename T>
__device__ inline void storeResult(const PoolParams& p, int64_t index, float value) {
  if (p.y_fp32) {
    p.y_fp32[index] = value;
  } else {
    static_cast<T*>(p.y)[index] = fromFloat<T>(value);
  }
}

constexpr float kMinNorm = 1e-12f;  // the least that rows are divided by

}  // namespace padfree
