// SPDX-License-Identifier: Apache-2.0
// Scores with a disentangled bias, for the fragments that mma_rows.cuh describes.
//
// A row r of a warp's 16 and a key n of a step meet in row n + 15 - r of the band of distances that the warp sees: 16
// keys need two chunks of 16 rows, of which the second is the first of the 16 keys that follow. So every product with
// a row of a table is made once or twice, by tensor cores: those of k_position with rows are columns of a matrix whose
// rows have to move against each other (its row r by 15 - r), those of q_position with keys are rows of one whose
// columns have to. Both moves stay within four or eight lanes, and a shuffle brings a value to the lane that holds its
// score; nothing passes through shared memory, and all stays fp32.
#pragma once

#include <cmath>

#include "common/device.cuh"
#include "common/ptx/mma.cuh"

namespace padfree {

// Rows of a band that a fragment of a matrix has.
constexpr int kChunk = 16;

// kBand: rows that a band has in shared memory, a multiple of kChunk; row x of the band is stored at x % kBand.
template <typename T, int kHeadSize, int kKeys, int kStride, int kBand>
class PositionScores {
 public:
  static constexpr int kKeyBlocks = kKeys / 8;
  using Scores = float[kKeyBlocks][4];

  __device__ PositionScores() {
    const int group = lane_ / 4, pair = lane_ % 4, shift = 7 - group;
    odd_ = shift % 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row_source_[i] = group * 4 + (shift + 2 * pair + i) % 8 / 2;
      row_wraps_[i] = 2 * pair + (shift + i) % 2 < shift + i;
      key_source_[i] = (shift + 2 * pair + i) % 8 * 4 + pair;
      key_wraps_[i] = group < 2 * pair + i;
    }
  }

  // scores = q k^T + q k_position^T + k q_position^T at each score's distance; -inf for keys that do not count.
  // band_row: that of the last of the rows and the first key, a multiple of kChunk. A band may be null. kMasked: of the
  // keys only the first `keys` count, and nothing beyond the next multiple of 16 is read.
  template <bool kMasked, class Rows>
  __device__ void multiply(Scores& scores, const Rows& rows, const T* k, const T* k_band, const T* q_band, int band_row,
                           int keys) const {
    const T* const key_row = k + (lane_ / 16 * 8 + lane_ % 8) * kStride + lane_ / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0.f;
    }
    Chunk key_chunks[2];       // of q_band: the chunk of 16 keys, and the next
    float row_products[4][4];  // of k_band times rows: the same two chunks, 8 rows each
    if (q_band) loadChunk(key_chunks[0], q_band, band_row);
    if (k_band) multiplyChunk(row_products[0], row_products[1], rows, k_band, band_row);
#pragma unroll
    for (int n = 0; n < kKeyBlocks; n += 2) {
      if (kMasked && n * 8 >= keys) break;
      const int next = band_row + n * 8 + kChunk;
      float key_products[2][2][4] = {};  // products of q_band: of 8 keys each, with both chunks
      Chunk &near = key_chunks[n / 2 % 2], &far = key_chunks[(n / 2 + 1) % 2];
      if (q_band) loadChunk(far, q_band, next);
#pragma unroll
      for (int d = 0; d < kHeadSize / 16; ++d) {
        unsigned b[4];
        loadMatrices(b, key_row + n * 8 * kStride + d * 16);
        multiplyAdd<T>(scores[n], rows.queries(0, d), b[0], b[1]);
        multiplyAdd<T>(scores[n + 1], rows.queries(0, d), b[2], b[3]);
        if (q_band) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            multiplyAdd<T>(key_products[i][0], near[d], b[2 * i], b[2 * i + 1]);
            multiplyAdd<T>(key_products[i][1], far[d], b[2 * i], b[2 * i + 1]);
          }
        }
      }
      if (q_band) {
#pragma unroll
        for (int i = 0; i < 2; ++i) addKeyProducts(scores[n + i], key_products[i], i);
      }
      if (k_band) {
        multiplyChunk(row_products[2], row_products[3], rows, k_band, next);
#pragma unroll
        for (int i = 0; i < 2; ++i)
          addRowProducts(scores[n + i], row_products[i], row_products[i + 1], row_products[i + 2]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          row_products[0][i] = row_products[2][i];
          row_products[1][i] = row_products[3][i];
        }
      }
    }
    if constexpr (kMasked) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (n * 8 + lane_ % 4 * 2 + i % 2 >= keys) scores[n][i] = -INFINITY;
        }
      }
    }
  }

 private:
  using Chunk = unsigned[kHeadSize / 16][4];

  __device__ void loadChunk(Chunk& chunk, const T* band, int band_row) const {
    const T* const row = band + (band_row % kBand + lane_ % 16) * kStride + lane_ / 16 * 8;
#pragma unroll
    for (int d = 0; d < kHeadSize / 16; ++d) loadMatrices(chunk[d], row + d * 16);
  }

  // Products of the query rows with 16 rows of the band, 8 in each result. Where rows move by an odd number the two of
  // a lane change their order: the first is then the one that a score in an even column gets.
  template <class Rows>
  __device__ void multiplyChunk(float (&first)[4], float (&second)[4], const Rows& rows, const T* band,
                                int band_row) const {
    const T* const row = band + (band_row % kBand + lane_ / 16 * 8 + lane_ % 8) * kStride + lane_ / 8 % 2 * 8;
    float products[2][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadSize / 16; ++d) {
      unsigned b[4];
      loadMatrices(b, row + d * 16);
      multiplyAdd<T>(products[0], rows.queries(0, d), b[0], b[1]);
      multiplyAdd<T>(products[1], rows.queries(0, d), b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      first[i] = odd_ ? products[0][i ^ 1] : products[0][i];
      second[i] = odd_ ? products[1][i ^ 1] : products[1][i];
    }
  }

  // Adds to the scores of 8 keys what lies in elements 0 to 7, 8 to 15 and 16 to 23 from theirs on: a lane's lower row
  // is up to 7 elements from its key, the upper one 8 further on.
  __device__ void addRowProducts(float (&scores)[4], const float (&a)[4], const float (&b)[4],
                                 const float (&c)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scores[i] += __shfl_sync(kFullMask, row_wraps_[i] ? c[i] : b[i], row_source_[i]);
      scores[i + 2] += __shfl_sync(kFullMask, row_wraps_[i] ? b[i + 2] : a[i + 2], row_source_[i]);
    }
  }

  // The same of products of two chunks with 8 keys, the first or the second of 16 keys.
  __device__ void addKeyProducts(float (&scores)[4], const float (&key_products)[2][4], int half) const {
    const auto part = [&](int group, int i) { return key_products[group / 2][group % 2 * 2 + i]; };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scores[i] += __shfl_sync(kFullMask, key_wraps_[i] ? part(half + 2, i) : part(half + 1, i), key_source_[i]);
      scores[i + 2] += __shfl_sync(kFullMask, key_wraps_[i] ? part(half + 1, i) : part(half, i), key_source_[i]);
    }
  }

  const int lane_ = threadIdx.x % kWarpSize;
  bool odd_;
  // For the scores in even and odd columns: the lane that holds a value, and whether the value that this lane sends
  // lies in the second 8 rows.
  int row_source_[2], key_source_[2];
  bool row_wraps_[2], key_wraps_[2];
};

}  // namespace padfree
