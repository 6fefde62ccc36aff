// SPDX-License-Identifier: Apache-2.0
// Rotations of pairs by angles of any size, for kernels that are bound by memory.
#pragma once

namespace padfree {

struct Rotation {
  float cosine, sine;
};

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

}  // namespace padfree
