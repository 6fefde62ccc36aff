// SPDX-License-Identifier: Apache-2.0
// The matrix products of the Hopper attention kernels. The caller fences, commits and waits.
#pragma once

#include <type_traits>

#include "attention/sm90/shape.cuh"

namespace padfree {

// scores[64xN] = rows at descriptor q times N keys at descriptor k, over the columns of a head.
template <typename S, int kBlocks>
__device__ inline void multiplyKeys(float (&scores)[kBlocks][4], unsigned q, unsigned k) {
#pragma unroll
  for (int d = 0; d < S::kD / 16; ++d) {
    wgmmaShared<typename S::T, S::kRowBytes>(scores, q + ((d / 4 * S::kQueryPanelBytes + d % 4 * 32) >> 4),
                                             k + ((d / 4 * S::kKeyPanelBytes + d % 4 * 32) >> 4), d > 0);
  }
}

// output (+)= weights [kFirst, kEnd), of 16 keys each, times the values of these keys at descriptor v.
template <typename S, int kFirst, int kEnd, int kWeights>
__device__ inline void multiplyValues(float (&output)[S::kPanels][S::kColumns / 8][4],
                                      const unsigned (&weights)[kWeights][4], unsigned v, bool accumulate) {
#pragma unroll
  for (int k = kFirst; k < kEnd; ++k) {
    const int key = (k - kFirst) * 16;
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
      wgmmaRegisters<typename S::T>(output[panel], weights[k],
                                    v + ((panel * S::kKeyPanelBytes + key * S::kRowBytes) >> 4),
                                    accumulate || k > kFirst);
    }
  }
}

// Zeros a step's values in shared memory, up to key `end`: a weight of 0 does not silence a NaN. first: of the
// 16-byte chunks, S::kRowChunks per row, the first that this thread of the warpgroup writes; all threads must meet
// before they multiply. values: a pointer or a shared-space address, which give other machine code.
template <typename S, typename Address>
__device__ inline void zeroValues(Address values, int first, int end) {
  const auto chunkAt = [](auto address) {
    if constexpr (std::is_pointer_v<decltype(address)>) {
      return reinterpret_cast<uint4*>(address);
    } else {
      return sharedPointer<uint4>(address);
    }
  };
  for (int i = first; i < end * S::kRowChunks; i += kWarpgroup) {
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
      *chunkAt(values + panel * S::kKeyPanelBytes + i * 16) = uint4{};
    }
  }
  fenceAsyncProxy();
}

}  // namespace padfree
