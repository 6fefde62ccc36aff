// SPDX-License-Identifier: Apache-2.0
// The end of a tile in few instructions, for shapes whose tiles are short: V's bias, which nearly all calls lack, is
// added in a branch of its own.
#pragma once

#include <type_traits>

#include "attention/mma_rows.cuh"

namespace padfree {

// Rows: WarpRows with kFragments fragments and kColumnBlocks blocks of 8 columns.
template <class Rows, int kFragments, int kColumnBlocks>
class StoredRows : public Rows {
 public:
  using Totals = float[kFragments][2];

  // The sum of a row's weights in all lanes that hold the row.
  __device__ float totalOf(int f, int part) const {
    float total = Rows::sum_[f][part];
    total += __shfl_xor_sync(kFullMask, total, 1);
    return total + __shfl_xor_sync(kFullMask, total, 2);
  }

  // The same of all rows.
  __device__ void totalAll(Totals& totals) const {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int part = 0; part < 2; ++part) totals[f][part] = totalOf(f, part);
    }
  }

  // As WarpRows::storeOutput, with the sums of weights.
  template <typename T, typename Result>
  __device__ void store(Result* y, int64_t stride, int rows, const T* bias, int D, const Totals& totals,
                        [[maybe_unused]] float factor) {
    const int lane = threadIdx.x % kWarpSize;
    const bool odd = lane % 2;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        divide(f, part, totals[f][part], bias, D);
        const int row = f * 16 + part * 8 + lane / 4;
        Result* const target = y + row * stride + odd * 8 + lane % 4 / 2 * 4;
        const int columns = row < rows ? D - odd * 8 : 0;
#pragma unroll
        for (int d = 0; d < kColumnBlocks; d += 2) {
          unsigned pairs[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float* const sums = &Rows::output_[f][d + i][part * 2];
            if constexpr (std::is_same_v<Result, E4m3>) {
              pairs[i] = packE4m3(sums[0] * factor, sums[1] * factor);
            } else {
              pairs[i] = packPair<T>(sums[0], sums[1]);
            }
          }
          const unsigned received = __shfl_xor_sync(kFullMask, odd ? pairs[0] : pairs[1], 1);
          const uint2 stored = odd ? uint2{received, pairs[1]} : uint2{pairs[0], received};
          if (d * 8 < columns) Rows::storeFour(target + d * 8, stored);
        }
      }
    }
  }

 private:
  // output = output / total + bias
  template <typename T>
  __device__ void divide(int f, int part, float total, const T* bias, int D) {
    const float inverse = __fdividef(1.f, total);
    if (bias) {
#pragma unroll
      for (int d = 0; d < kColumnBlocks; ++d) {
        const float2 addend = Rows::biasPair(bias, d * 8 + threadIdx.x % kWarpSize % 4 * 2, D);
        float* const sums = &Rows::output_[f][d][part * 2];
        sums[0] = fmaf(sums[0], inverse, addend.x);
        sums[1] = fmaf(sums[1], inverse, addend.y);
      }
    } else {
#pragma unroll
      for (int d = 0; d < kColumnBlocks; ++d) {
        Rows::output_[f][d][part * 2] *= inverse;
        Rows::output_[f][d][part * 2 + 1] *= inverse;
      }
    }
  }
};

}  // namespace padfree
