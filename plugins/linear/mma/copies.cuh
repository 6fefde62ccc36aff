// SPDX-License-Identifier: Apache-2.0
// Copies of a tile's operands into the stages of a ring, by all threads of a block. Rows and features that are not
// there are copied from the last ones, for their results are not stored; what is beyond K becomes zero.
#pragma once

#include "common/ptx/cp_async.cuh"
#include "linear/mma/tile.cuh"

namespace padfree {

// Of rows along the reduction, `row_bytes` long: the input, and weights [N,K].
template <typename Tile, int kRows>
class MmaRowCopies {
  static constexpr int kChunks = Tile::kDepthBytes / kVectorBytes, kStride = Tile::kThreads / kChunks;
  static constexpr int kCount = kRows / kStride;
  static_assert(kRows % kStride == 0 && kStride % 8 == 0);

 public:
  // Rows `first` and those after it, of `rows`, from a stage of the reduction on.
  __device__ MmaRowCopies(const void* data, int rows, int first, int64_t row_bytes, int stage) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    offset_ = Tile::rowOffset(row, chunk);
    const int64_t begin = int64_t{stage} * Tile::kDepthBytes + chunk * kVectorBytes;
    left_ = row_bytes - begin;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int from = min(first + row + i * kStride, rows - 1);
      sources_[i] = static_cast<const char*>(data) + from * row_bytes + begin;
    }
  }

  // Copies the next stage.
  __device__ void run(unsigned char* shared) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      copyAsync16(shared + offset_ + i * kStride * Tile::kDepthBytes, sources_[i], left_ > 0);
      sources_[i] += Tile::kDepthBytes;
    }
    left_ -= Tile::kDepthBytes;
  }

 private:
  const char* sources_[kCount];
  int64_t left_;  // bytes of the rows from the next chunk on
  int offset_;
};

// Of weights [K,N] of 2-byte elements: a stage has rows of the reduction with all of the tile's features.
template <typename Tile>
struct MmaWeightRows {
  static constexpr int kRowBytes = Tile::kFeatures * 2, kRows = Tile::kWeightBytes / kRowBytes;
  static constexpr int kStepRows = kMmaStepBytes / 2;

  static __device__ int offset(int row, int chunk) { return row * kRowBytes + ((chunk ^ (row & 7)) * kVectorBytes); }
};

template <typename Tile>
class MmaWeightCopies {
  using Rows = MmaWeightRows<Tile>;
  static constexpr int kChunks = Rows::kRowBytes / kVectorBytes, kStride = Tile::kThreads / kChunks;
  static constexpr int kCount = Rows::kRows / kStride;
  static_assert(Rows::kRows % kStride == 0 && kStride % 8 == 0);

 public:
  __device__ MmaWeightCopies(const void* weight, int K, int N, int feature, int stage) : row_bytes_(int64_t{N} * 2) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks, begin = stage * Rows::kRows + row;
    offset_ = Rows::offset(row, chunk);
    left_ = K - begin;
    source_ = static_cast<const char*>(weight) + begin * row_bytes_ + min(feature + chunk * 8, N - 8) * 2;
  }

  __device__ void run(unsigned char* shared) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      copyAsync16(shared + offset_ + i * kStride * Rows::kRowBytes, source_ + i * kStride * row_bytes_,
                  left_ > i * kStride);
    }
    source_ += Rows::kRows * row_bytes_;
    left_ -= Rows::kRows;
  }

 private:
  const char* source_;
  const int64_t row_bytes_;
  int left_, offset_;  // rows from the next on
};

}  // namespace padfree
