// SPDX-License-Identifier: Apache-2.0
// Conversions and additions by the tensor cores, for kernels that are bound by instruction issue.
#pragma once

#include "common/device.cuh"
#include "common/ptx/mma.cuh"

namespace padfree {

// This lane's fragment of the 8x8 identity, as half of the mma's matrix b; 0 for 4-byte elements, which need none.
template <typename T>
__device__ inline unsigned identityFragment() {
  if constexpr (sizeof(T) == 4) {
    return 0;
  } else {
    const int column = threadIdx.x % kWarpSize / 4, row = threadIdx.x % 4 * 2;
    return packPair<T>(row == column ? 1.f : 0.f, row + 1 == column ? 1.f : 0.f);
  }
}

// x += the elements in 16 bytes, in fp32. Two instructions instead of 16 for 2-byte elements: `bits` is a lane's
// fragment of a 16x16 matrix, whose products with (identity over zeros) and (zeros over identity) are its halves, every
// element in the lane that it came from. All lanes of the warp call it. What is not finite spreads over a quad of
// lanes.
template <typename T>
__device__ inline void accumulate(const uint4& bits, unsigned identity, float (&x)[kVectorBytes / sizeof(T)]) {
  if constexpr (sizeof(T) == 4) {
    float addend[4];
    unpackFloats<T>(bits, addend);
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] += addend[j];
  } else {
    const unsigned a[] = {bits.x, bits.y, bits.z, bits.w};
    multiplyAdd<T>(reinterpret_cast<float (&)[4]>(x[0]), a, identity, 0);
    multiplyAdd<T>(reinterpret_cast<float (&)[4]>(x[4]), a, 0, identity);
  }
}

}  // namespace padfree
