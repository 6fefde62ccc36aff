// SPDX-License-Identifier: Apache-2.0
// Operands in e4m3: a stage has the same bytes as one of fp16, and takes the tensor cores as long.
#pragma once

#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"
#include "linear/sm90/results_e4m3.cuh"
#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

// W is [N,K]: rows of 128 numbers along the reduction, which are blocks of 16 features. The map may give the even
// features of a block first and its odd ones then, so that a thread's two features are neighbours (launch_e4m3.cuh).
template <typename T>
struct E4m3Operands {
  using Result = T;
  using Maps = E4m3Maps;
  template <typename Epilogue>
  using Results = E4m3Results<T, Epilogue>;
  static constexpr bool scaled = true;
  static constexpr int depth = kE4m3Depth;

  static constexpr int steps = kPanelRowBytes / 32;  // matrix instructions of a stage

  template <int kTokens, int kBegin = 0, int kEnd = steps>
  static __device__ void multiply(float (&sums)[kTokens / 8][4], uint64_t a, uint64_t b, bool accumulate) {
#pragma unroll
    for (int k = kBegin; k < kEnd; ++k) {
      wgmmaE4m3<kTokens>(sums, a + k * (32 >> 4), b + k * (32 >> 4), accumulate || k > 0);
    }
  }

  template <int kPanels>
  struct Share {
    int feature;
    __device__ Share(int sharer, int sharers) : feature(sharer * (kPanels * kGroupFeatures / sharers)) {}
    __device__ void fetch(const Maps& maps, unsigned target, int first, int depth, uint64_t* full,
                          uint16_t blocks) const {
      copyRows(target + feature * kPanelRowBytes, maps.weight, depth, (first + feature) / kPairBlock, full, blocks);
    }
  };
};

}  // namespace padfree
