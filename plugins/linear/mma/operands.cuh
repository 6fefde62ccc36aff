// SPDX-License-Identifier: Apache-2.0
// The operands of mma.sync: how the weights' fragments leave shared memory, and the instruction.
#pragma once

#include "common/e4m3_code.cuh"
#include "common/ptx/mma.cuh"
#include "linear/mma/copies.cuh"

namespace padfree {

// fp16 or bf16, with weights [K,N].
template <typename T>
struct MmaHalf {
  using Result = T;
  static constexpr int kElementBytes = 2;
  static constexpr bool kScaled = false;

  template <typename Tile>
  static __device__ auto weightCopies(const LinearParams& p, int feature) {
    return MmaWeightCopies<Tile>(p.weight, p.K, p.N, feature);
  }
  template <typename Tile>
  static __device__ int weightOffset(const MmaWarp<Tile>& warp) {
    using Rows = MmaWeightRows<Tile>;
    return Rows::offset(warp.slice * Tile::kSteps * Rows::kStepRows + warp.lane % 16,
                        warp.feature / 8 + warp.lane / 16);
  }
  // Of 16 features, those after `pair` pairs of blocks of 8.
  template <typename Tile>
  static __device__ void loadWeight(unsigned (&b)[4], const unsigned char* weight, int offset, int step, int pair) {
    using Rows = MmaWeightRows<Tile>;
    loadMatricesTransposed(b, weight + (offset ^ pair * 2 * kVectorBytes) + step * Rows::kStepRows * Rows::kRowBytes);
  }
  static __device__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    multiplyAdd<T>(sum, a, b0, b1);
  }
};

// e4m3, with weights [N,K] and results of type T.
template <typename T>
struct MmaE4m3 {
  using Result = T;
  static constexpr int kElementBytes = 1;
  static constexpr bool kScaled = true;

  template <typename Tile>
  static __device__ auto weightCopies(const LinearParams& p, int feature) {
    return MmaRowCopies<Tile, Tile::kFeatures>(p.weight, p.N, feature, p.K);
  }
  template <typename Tile>
  static __device__ int weightOffset(const MmaWarp<Tile>& warp) {
    return Tile::rowOffset(warp.feature + warp.lane / 16 * 8 + warp.lane % 8,
                           warp.slice * Tile::kSteps * 2 + warp.lane / 8 % 2);
  }
  template <typename Tile>
  static __device__ void loadWeight(unsigned (&b)[4], const unsigned char* weight, int offset, int step, int pair) {
    loadMatrices(b, weight + (offset ^ step * kMmaStepBytes) + pair * 16 * Tile::kDepthBytes);
  }
  static __device__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    multiplyAddE4m3(sum, a, b0, b1);
  }
};

// Whether the architecture that is compiled for multiplies such operands.
template <typename Operands>
constexpr bool hasMmaProducts() {
  return !Operands::kScaled || hasE4m3();
}

}  // namespace padfree
