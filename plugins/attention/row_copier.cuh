// SPDX-License-Identifier: Apache-2.0
// How the kernels on mma.sync bring rows of a head to shared memory.
#pragma once

#include "attention/launch.h"
#include "common/device.cuh"
#include "common/ptx/cp_async.cuh"

namespace padfree {

constexpr int kRowPad = 8;  // elements: an odd number of 16-byte chunks per row keeps ldmatrix free of bank conflicts

// One thread's share of copying rows of a head to shared memory: the same columns of every kStep-th row.
template <typename T, int kHeadSize, int kThreads>
class RowCopier {
 public:
  __device__ RowCopier(int head, int D) : head_(head), D_(D) {}

  // Copies kRows rows from a token on, of which `valid` exist. Zeros follow up to a multiple of 16 rows, as far as
  // fragments reach, and stand in columns from D on: whatever lies there in memory cannot reach the results (0 * NaN is
  // NaN).
  template <int kRows>
  __device__ void copy(T* shared, const AttentionOperand& operand, int token, int valid) const {
    static_assert(kRows % kStep == 0, "every thread copies as many rows");
    const T* const source = static_cast<const T*>(operand.data) + (token + row_) * operand.token_stride +
                            head_ * operand.head_stride + (column_ < D_ ? column_ : 0);
    T* const target = shared + row_ * (kHeadSize + kRowPad) + column_;
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) {
      if ((row_ + i) / 16 * 16 >= valid) break;
#pragma unroll
      for (int j = 0; j < kHeadSize; j += kColumns) {
        copyAsync16(target + i * (kHeadSize + kRowPad) + j, source + i * operand.token_stride + j,
                    column_ + j < D_ && row_ + i < valid);
      }
    }
  }

  // The same without branches for rows, and with zeros in all that do not exist. kAtOnce: copies without a branch
  // between them, all unless it is given.
  template <int kRows, int kAtOnce = kRows>
  __device__ void copyAll(T* shared, const AttentionOperand& operand, int token, int valid) const {
    const T* source = static_cast<const T*>(operand.data) + (token + row_) * operand.token_stride +
                      head_ * operand.head_stride + (column_ < D_ ? column_ : 0);
    T* const target = shared + row_ * (kHeadSize + kRowPad) + column_;
#pragma unroll kAtOnce
    for (int i = 0; i < kRows; i += kStep, source += kStep * operand.token_stride) {
#pragma unroll
      for (int j = 0; j < kHeadSize; j += kColumns) {
        copyAsync16(target + i * (kHeadSize + kRowPad) + j, source + j, column_ + j < D_ && row_ + i < valid);
      }
    }
  }

  // The same as a function of a part, below kParts, for products to stand between them. kTogether: copies without a
  // product between them. Copies nothing unless `wanted`.
  template <int kRows, int kParts, int kTogether>
  __device__ auto inParts(T* shared, const AttentionOperand& operand, int token, int valid, bool wanted) const {
    return [=, *this](int part) {
      constexpr int kCopies = kRows / kStep;
      constexpr int kEvery = kTogether * kParts / kCopies;
      static_assert(kEvery > 0 && kEvery * kCopies == kTogether * kParts, "parts are even");
      if (part % kEvery) return;
#pragma unroll
      for (int c = 0; c < kTogether; ++c) {
        const int row = row_ + (part / kEvery * kTogether + c) * kStep;
        const T* const source = static_cast<const T*>(operand.data) + (token + row) * operand.token_stride +
                                head_ * operand.head_stride + (column_ < D_ ? column_ : 0);
        T* const target = shared + row * (kHeadSize + kRowPad) + column_;
#pragma unroll
        for (int j = 0; j < kHeadSize; j += kColumns) {
          copyAsync16(target + j, source + j, column_ + j < D_ && row < valid, wanted);
        }
      }
    };
  }

  // Asks the L2 cache for `rows` rows.
  __device__ void prefetch(const AttentionOperand& operand, int token, int rows) const {
    constexpr int kLine = 128 / sizeof(T), kLines = ceilDiv(kHeadSize, kLine);
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * kLines; i += kThreads) {
      if (i % kLines * kLine >= D_) continue;
      prefetchL2(static_cast<const T*>(operand.data) + (token + i / kLines) * operand.token_stride +
                 head_ * operand.head_stride + i % kLines * kLine);
    }
  }

  // As copyAll, quicker where all rows exist and have all columns, as nearly always where sequences are long.
  template <int kRows>
  __device__ void copyWhole(T* shared, const AttentionOperand& operand, int token, int valid) const {
    if (valid < kRows || D_ != kHeadSize) return copyAll<kRows>(shared, operand, token, valid);
    const T* const source = static_cast<const T*>(operand.data) + (token + row_) * operand.token_stride +
                            head_ * operand.head_stride + column_;
    copyExisting<kRows>(shared + row_ * (kHeadSize + kRowPad) + column_, source, kStep * operand.token_stride);
  }

  // The same in less code: where rows do not exist, in a short loop.
  template <int kRows>
  __device__ void copyBriefly(T* shared, const AttentionOperand& operand, int token, int valid) const {
    const T* source = this->source(operand, token);
    T* target = shared + row_ * (kHeadSize + kRowPad) + column_;
    const int64_t advance = kStep * operand.token_stride;
    if (valid >= kRows && D_ == kHeadSize) return copyExisting<kRows>(target, source, advance);
    const int left = valid - row_;
#pragma unroll 2
    for (int i = 0; i < kRows; i += kStep, source += advance, target += kStep * (kHeadSize + kRowPad)) {
#pragma unroll
      for (int j = 0; j < kHeadSize; j += kColumns) {
        copyAsync16(target + j, source + j, column_ + j < D_ && i < left);
      }
    }
  }

  // The address of this thread's first chunk of the rows from a token on.
  __device__ const T* source(const AttentionOperand& operand, int token) const {
    return static_cast<const T*>(operand.data) + (token + row_) * operand.token_stride + head_ * operand.head_stride +
           (column_ < D_ ? column_ : 0);
  }

  // As copyBriefly, from `source` on; stride: elements between tokens.
  template <int kRows>
  __device__ void copyFrom(T* shared, const T* source, int64_t stride, int valid) const {
    T* const target = shared + row_ * (kHeadSize + kRowPad) + column_;
    const int64_t advance = kStep * stride;
    if (valid >= kRows && D_ == kHeadSize) return copyExisting<kRows>(target, source, advance);
    const int left = valid - row_;
#pragma unroll 1
    for (int i = 0; i < kRows; i += kStep, source += advance) {
#pragma unroll
      for (int j = 0; j < kHeadSize; j += kColumns) {
        copyAsync16(target + i * (kHeadSize + kRowPad) + j, source + j, column_ + j < D_ && i < left);
      }
    }
  }

  // Adds a bias [D] to what this thread copied of kRows rows; its copies have arrived.
  template <int kRows>
  __device__ void add(T* shared, const T* bias) const {
#pragma unroll
    for (int j = 0; j < kHeadSize; j += kColumns) {
      if (column_ + j >= D_) continue;
      float addend[8];
      loadFloats<8>(bias + column_ + j, addend);
#pragma unroll
      for (int i = 0; i < kRows; i += kStep) {
        T* const element = shared + (row_ + i) * (kHeadSize + kRowPad) + column_ + j;
        float values[8];
        loadFloats<8>(element, values);
#pragma unroll
        for (int c = 0; c < 8; ++c) values[c] += addend[c];
        storeFloats<8>(element, values);
      }
    }
  }

  // Copies kRows rows of a table of positions, the first for distance `first`. max_distance: the largest, on both
  // sides, that has a row of its own. middle: the row of distance 0.
  template <int kRows>
  __device__ void copyDistances(T* shared, const T* middle, int64_t stride, int first, int max_distance) const {
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) {
      const int distance = max(min(first + row_ + i, max_distance), -max_distance);
      const T* const source = middle + distance * stride + head_ * D_ + (column_ < D_ ? column_ : 0);
#pragma unroll
      for (int j = 0; j < kHeadSize; j += kColumns) {
        copyAsync16(shared + (row_ + i) * (kHeadSize + kRowPad) + column_ + j, source + j, column_ + j < D_);
      }
    }
  }

 private:
  // Rows that all exist and have all columns, every kStep from those of `target` and `source` on.
  template <int kRows>
  __device__ static void copyExisting(T* target, const T* source, int64_t advance) {
#pragma unroll
    for (int i = 0; i < kRows; i += kStep, source += advance) {
#pragma unroll
      for (int j = 0; j < kHeadSize; j += kColumns) copyAsync16(target + i * (kHeadSize + kRowPad) + j, source + j);
    }
  }

  static constexpr int kColumns = kHeadSize == 96 ? 32 : kHeadSize;  // a power of two, copied at a time
  static constexpr int kStep = kThreads / (kColumns / 8);

  const int row_ = threadIdx.x / (kColumns / 8);
  const int column_ = threadIdx.x % (kColumns / 8) * 8;
  const int head_, D_;
};

// Copies kKeys rows from `next` on, which moves to those of the next step.
template <int kKeys, class Copier, typename T>
__device__ void copyNext(const Copier& copier, T* shared, const AttentionOperand& operand, const T*& next, int valid) {
  copier.template copyFrom<kKeys>(shared, next, operand.token_stride, valid);
  next += kKeys * operand.token_stride;
}

// Calls function(part) for each part.
template <int kParts, class Function>
__device__ void callParts(const Function& function) {
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) function(part);
}

template <typename T>
__device__ const T* biasOf(const AttentionOperand& operand, int head) {
  return operand.bias ? static_cast<const T*>(operand.bias) + head * operand.bias_head_stride : nullptr;
}

}  // namespace padfree
