// SPDX-License-Identifier: Apache-2.0
// What a GEMM multiplies: fp16 or bf16 as its results are, or e4m3. A stage has the same bytes of both, and takes
// the tensor cores as long.
#pragma once

#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"
#include "linear/sm90/results.cuh"
#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

// W is [K,N]: panels of 64 features by the stage's depth, rows across the reduction.
template <typename T>
struct HalfOperands {
  using Result = T;  // and bias and residual
  using Maps = padfree::Maps;
  template <typename Epilogue>
  using Results = HalfResults<T, Epilogue>;
  static constexpr bool scaled = false;       // whether sums are multiplied by Work::scale
  static constexpr int depth = kLinearDepth;  // of the reduction in a stage

  static constexpr int steps = kLinearDepth / 16;  // matrix instructions of a stage

  template <int kTokens, int kBegin = 0, int kEnd = steps>
  static __device__ void multiply(float (&sums)[kTokens / 8][4], uint64_t a, uint64_t b, bool accumulate) {
#pragma unroll
    for (int k = kBegin; k < kEnd; ++k) {
      // 16 rows of W further, 16 columns of x further, in units of 16 bytes.
      wgmmaTransposed<T, kTokens>(sums, a + k * (16 * kPanelRowBytes >> 4), b + k * (16 * 2 >> 4), accumulate || k > 0);
    }
  }

  // A block's share of a stage's weights, kPanels panels, for the blocks with the same features: two, one, or half of
  // one.
  template <int kPanels>
  struct Share {
    int panels, feature, row;
    __device__ Share(int sharer, int sharers)
        : panels(sharers < kPanels ? kPanels : 1),
          feature(sharer * kPanels / sharers * kGroupFeatures),
          row(sharer * kPanels % sharers * (kLinearDepth / sharers)) {}
    // Fetches the tile's features from `first` on, over the stage's reduction from `depth` on.
    __device__ void fetch(const Maps& maps, unsigned target, int first, int depth, uint64_t* full,
                          uint16_t blocks) const {
      target += feature * kPanelRowBytes + row * kPanelRowBytes;
      first += feature;
      copyBox(target, maps.weight, first, depth + row, full, blocks);
      if (panels == 1) return;
      copyBox(target + kGroupFeatures * kPanelRowBytes, maps.weight, first + kGroupFeatures, depth, full, blocks);
    }
  };
};

}  // namespace padfree
