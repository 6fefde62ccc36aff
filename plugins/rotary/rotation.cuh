// SPDX-License-Identifier: Apache-2.0
// Rotations of pairs by angles of any size, for kernels that are bound by memory.
#pragma once

#include "common/rotation.h"

namespace padfree {

__device__ inline Rotation rotationOf(int position, float frequency) {
  Rotation rotation;
  sincosf(static_cast<float>(position) * frequency, &rotation.sine, &rotation.cosine);
  return rotation;
}

__device__ inline void rotatePair(float& x, float& y, float cosine, float sine) {
  const float before = x;
  x = x * cosine - y * sine;
  y = y * cosine + before * sine;
}

// The pairs of a head's two vectors: neighbours, or numbers in the same place of both.
template <bool kInterleaved, int kWidth>
__device__ inline void rotatePairs(float (&value)[2][kWidth], const float (&cosine)[kWidth],
                                   const float (&sine)[kWidth]) {
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    float& first = kInterleaved ? value[2 * k / kWidth][2 * k % kWidth] : value[0][k];
    float& second = kInterleaved ? value[2 * k / kWidth][2 * k % kWidth + 1] : value[1][k];
    rotatePair(first, second, cosine[k], sine[k]);
  }
}

}  // namespace padfree
