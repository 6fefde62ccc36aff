// SPDX-License-Identifier: Apache-2.0
// Sums of squares of the heads that epilogues norm: of the lanes of a warp, and of two blocks that have half of each
// head.
#pragma once

#include "common/ptx/cluster.cuh"
#include "common/ptx/mma.cuh"
#include "linear/sm90/shape.cuh"

namespace padfree {

// Adds what lanes with the same lane % 4 have of four tokens, [half][k]: those with the same lane & 24 get the sum of
// token 8 * (lane / 16) + lane / 8 % 2 of these.
__device__ inline float sumOfLanes(const float (&squares)[2][2], int lane) {
  const bool high = lane & 16, odd = lane & 8;
  float mine[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    mine[k] =
        (high ? squares[1][k] : squares[0][k]) + __shfl_xor_sync(kFullMask, high ? squares[0][k] : squares[1][k], 16);
  }
  const float sum = (odd ? mine[1] : mine[0]) + __shfl_xor_sync(kFullMask, odd ? mine[0] : mine[1], 8);
  return sum + __shfl_xor_sync(kFullMask, sum, 4);
}

// Heads of two tiles side by side, which two neighbouring blocks of a cluster compute at the same time. Each sends its
// sums to the other's shared memory, where two tiles' take turns: those of the next tile but one come to the same
// place. By then a block has those of the next tile, which its neighbour sends when it has read what it got before.
template <int kTokens>
class HeadHalves {
 public:
  static constexpr int kBytes = 2 * kTokens * sizeof(float);  // of shared memory

  // One thread, before any block of the cluster sends.
  static __device__ void init() {
    for (int i = 0; i < 2; ++i) barrierInit(barriers() + i, 1);
  }

  // What the neighbour summed of a token of this tile, where this block summed `mine`. `received` are kBytes, at the
  // same place in both blocks. A thread for each token calls it.
  __device__ float otherHalf(float* received, float mine, int token) const {
    uint64_t* const barrier = barriers() + tile_ % 2;
    float* const theirs = received + tile_ % 2 * kTokens + token;
    const unsigned neighbour = clusterRank() ^ 1;
    if (token == 0) barrierExpect(barrier, kTokens * sizeof(float));
    sendFloat(addressAt(sharedAddress(theirs), neighbour), mine, addressAt(sharedAddress(barrier), neighbour));
    barrierWait(barrier, tile_ / 2 % 2);
    return *theirs;
  }

  // To be called by every thread after each tile of heads.
  __device__ void headIsDone() { ++tile_; }

 private:
  // Here, because only kernels that norm heads have them.
  static __device__ uint64_t* barriers() {
    __shared__ uint64_t barriers[2];
    return barriers;
  }

  unsigned tile_ = 0;  // of heads
};

}  // namespace padfree
