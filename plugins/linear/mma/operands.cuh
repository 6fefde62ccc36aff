// SPDX-License-Identifier: Apache-2.0
// The operands of mma.sync: how the weights' fragments leave shared memory, and the instruction.
#pragma once

#include <type_traits>

#include "common/e4m3_code.cuh"
#include "common/ptx/int8.cuh"
#include "common/ptx/mma.cuh"
#include "linear/mma/copies.cuh"
#include "linear/mma/launch.h"

namespace padfree {

// fp16 or bf16, with weights [K,N].
template <typename T>
struct MmaHalf {
  using Result = T;
  using Sum = float;
  static constexpr int kElementBytes = 2;
  static constexpr bool kScaled = false, kE4m3 = false, kInt8 = false, kFp16Sums = false;

  template <typename Tile>
  static __device__ auto weightCopies(const LinearParams& p, int feature, int stage) {
    return MmaWeightCopies<Tile>(p.weight, p.K, p.N, feature, stage);
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

// fp16 whose products are added 16 at a time in fp16, for tensor cores that take half the time for that. A sum beyond
// fp16 is no number, and stays none in fp32: the tile is computed again without (kernel.cuh).
struct MmaFp16Sums : MmaHalf<half> {
  static constexpr bool kFp16Sums = true;

  static __device__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    multiplyAddInFp16(sum, a, b0, b1);
  }
};

// Elements of one byte, with weights [N,K], scales of features, and results of type T.
template <typename T, typename SumType>
struct MmaBytes {
  using Result = T;
  using Sum = SumType;
  static constexpr int kElementBytes = 1;
  static constexpr bool kScaled = true, kE4m3 = std::is_same_v<Sum, float>, kInt8 = !kE4m3, kFp16Sums = false;

  template <typename Tile>
  static __device__ auto weightCopies(const LinearParams& p, int feature, int stage) {
    return MmaRowCopies<Tile, Tile::kFeatures>(p.weight, p.N, feature, p.K, stage);
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
  static __device__ void multiply(Sum (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (kE4m3) {
      multiplyAddE4m3(sum, a, b0, b1);
    } else {
      multiplyAddInt8(sum, a, b0, b1);
    }
  }
};

// Whether the architecture that is compiled for multiplies such operands.
template <typename Operands>
constexpr bool hasMmaProducts() {
  return !Operands::kE4m3 || hasE4m3();
}

}  // namespace padfree
