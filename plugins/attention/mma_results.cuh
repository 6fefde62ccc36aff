// SPDX-License-Identifier: Apache-2.0
// What the kernels on mma.sync store: results in the operands' type, or in e4m3 by instances of their own, so that the
// others keep the machine code that they have without e4m3.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/device.cuh"

namespace padfree {

using E4m3 = uint8_t;

// Rows of y that no sequence owns become zeros: `rows` rows of a head, `stride` elements apart. Threads of the block.
template <int kThreads, typename Result>
__device__ void zeroRows(Result* y, int64_t stride, int D, int rows) {
  using Chunk = std::conditional_t<std::is_same_v<Result, E4m3>, uint2, uint4>;  // of 8 results
  const int chunks = D / 8;
  for (int i = threadIdx.x; i < rows * chunks; i += kThreads) {
    *reinterpret_cast<Chunk*>(y + i / chunks * stride + i % chunks * 8) = Chunk{};
  }
}

}  // namespace padfree
