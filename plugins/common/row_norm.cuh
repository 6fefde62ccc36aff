// SPDX-License-Identifier: Apache-2.0
// Layer norm and RMS norm of rows that are sums. Rows stay in registers between the sum, the variance and the result,
// so that every activation is read once; the statistics take two passes over them in fp32.
//
// A Source is a small struct that says what a row is the sum of:
//   static constexpr int kAddends
//       how many addends a row has at most
//   bool begin<kLanes>(int64_t row, const T* (&addends)[kAddends]) const
//       called by every lane of an aligned group of kLanes (those of the warp, if a row has more); sets the addends, of
//       E elements each, null where there is none; false: the row becomes zeros
//   void prefetch() const
//       before the kernels ahead have ended: brings what every row needs into the L2 cache
//   static constexpr bool kMayReadEarly, bool readsEarly() const
//       whether begin() may be called before the kernel ahead has ended, and waits for it by itself
//   static constexpr bool kHasBlocksAhead, unsigned blocksAhead() const
//       whether some blocks, the first, do something else, and how many; none where there is no such code
//   void runBlockAhead(const Norm& p) const
//       all of what these do, waiting for the kernels ahead and letting the next one begin included
//   static constexpr bool hasHighOccupancy(int lanes, int vectors), bool wantsHighOccupancy() const
//       whether there are high-occupancy kernels (rowNormVectorKernel) for rows of this many threads and vectors per
//       thread; whether to use them for this source
#pragma once

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/e4m3_code.cuh"
#include "common/launch.h"
#include "common/row_sums.cuh"

namespace padfree {

template <typename T>
struct RowNorm {
  using Element = T;
  static constexpr bool kE4m3 = false, kTwoTypes = false, kMayHaveFirst = false;
  static constexpr int kAccessBytes = kVectorBytes;  // of a row, that a thread loads or stores by one instruction

  const T* gamma;  // [E]
  const T* beta;   // [E] or null
  T* y;            // [rows, E]; may be null where kTwoTypes
  T* sum;          // [rows, E] or null: the rows before the norm
  int64_t rows;
  int E;
  float inverse_E;  // 1 / E
  float epsilon;
  bool rms;

  __host__ __device__ int64_t results() const { return rows; }
};

// Rows stored as e4m3: y, rounded to T, times `factor`, and rounded again, as a quantisation of rows in T would give.
struct E4m3Rows {
  static constexpr bool kE4m3 = true, kMayHaveFirst = false;
  static constexpr int kAccessBytes = kVectorBytes;

  unsigned char* data;  // [rows, E], or null
  float factor;
};

// Rows stored in fp32, not rounded. Neighbouring lanes store 16 bytes each: with 32 bytes each, in two instructions
// that leave gaps, every sector of the L2 cache would be written twice.
//
// The rows of sequences' first tokens may be stored a second time, in T, as results that follow all rows.
struct Fp32Rows {
  static constexpr bool kE4m3 = false, kMayHaveFirst = true;
  static constexpr int kAccessBytes = kVectorBytes / 2;

  float* data;            // [rows, E]
  void* first;            // [B, E], zeros for an empty sequence
  const int* cu_seqlens;  // [B+1]
  int B;                  // 0: there are none
};

// A norm whose rows are stored in another type, and in T as well unless y is null.
template <typename T, typename Rows>
struct TwoTypeRowNorm : RowNorm<T> {
  static constexpr bool kE4m3 = Rows::kE4m3, kTwoTypes = true, kMayHaveFirst = Rows::kMayHaveFirst;
  static constexpr int kAccessBytes = Rows::kAccessBytes;

  Rows other;

  __host__ __device__ int64_t results() const {
    if constexpr (kMayHaveFirst) return this->rows + other.B;
    return this->rows;
  }
};

// The row that a result is of; -1 for an empty sequence's, and beyond the results.
template <typename Norm>
__device__ int64_t rowOf(const Norm& p, int64_t result) {
  if (result < p.rows) return result;
  if constexpr (Norm::kMayHaveFirst) {
    if (result >= p.results()) return -1;
    const int b = static_cast<int>(result - p.rows), T = static_cast<int>(p.rows);
    const int start = sequenceStart(p.other.cu_seqlens, b, T);
    if (start < sequenceStart(p.other.cu_seqlens, b + 1, T)) return start;
  }
  return -1;
}

// The address of a result that is a first token's row, otherwise null.
template <typename Norm>
__device__ typename Norm::Element* firstRow(const Norm& p, int64_t result) {
  if constexpr (Norm::kMayHaveFirst) {
    if (result >= p.rows) return static_cast<typename Norm::Element*>(p.other.first) + (result - p.rows) * p.E;
  }
  return nullptr;
}

// Stores numbers of rows from element `at` on, a multiple of kWidth, by one store.
template <typename T, int kWidth>
__device__ inline void storeRow(const Fp32Rows& rows, int64_t at, const float (&x)[kWidth]) {
  storeFloats(rows.data + at, x);
}

template <typename T>
__device__ inline void storeRow(const Fp32Rows& rows, int64_t at, float x) {
  rows.data[at] = x;
}

template <typename T, int kWidth>
__device__ inline void storeRow(const E4m3Rows& rows, int64_t at, const float (&x)[kWidth]) {
  Packed<unsigned, kWidth / 4> words;
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    const float2 pair = unpackPair<T>(packPair<T>(x[i], x[i + 1]));
    const unsigned narrow = packE4m3(pair.x * rows.factor, pair.y * rows.factor);
    words.v[i / 4] = i % 4 == 0 ? narrow : words.v[i / 4] | narrow << 16;
  }
  *reinterpret_cast<Packed<unsigned, kWidth / 4>*>(rows.data + at) = words;
}

template <typename T>
__device__ inline void storeRow(const E4m3Rows& rows, int64_t at, float x) {
  rows.data[at] = static_cast<unsigned char>(packE4m3(toFloat(fromFloat<T>(x)) * rows.factor, 0.f));
}

constexpr int kRowNormThreads = 128;

// Elements of rows that fill this many vectors of this many threads.
template <typename T>
constexpr int widthOf(int lanes, int vectors) {
  return lanes * vectors * kVectorBytes / static_cast<int>(sizeof(T));
}

// Blocks of a high-occupancy kernel that must fit on a multiprocessor, which bounds the registers of a thread with this
// many vectors: at most three of them spill; 8 blocks of four vectors would spill dozens.
constexpr int highOccupancyBlocks(int vectors) {
  return vectors == 4 ? 6 : 8;
}

// No minimum of blocks for __launch_bounds__. 1 is not the same: ptxas then takes more registers than without a minimum
// (fp16, E 4096: 108 instead of 92).
constexpr int kNoBound = 0;

// Stores the vectors that a row has.
template <typename T, int kVectors, int kWidth, typename Column, typename Inside>
__device__ inline void storeVectors(T* row, const float (&x)[kVectors][kWidth], const Column& column,
                                    const Inside& inside) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (inside(i)) storeFloats(row + column(i), x[i]);
  }
}

// Loads the vectors that a row has; zeros where there is no row.
template <typename T, typename Raw, int kVectors, typename Column, typename Inside>
__device__ inline void loadVectors(const T* row, Raw (&to)[kVectors], const Column& column, const Inside& inside) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to[i] = row && inside(i) ? *reinterpret_cast<const Raw*>(row + column(i)) : Raw{};
  }
}

// Prefetches what every row needs.
template <typename Source>
__device__ inline void prefetchNorm(const Source& source, const void* gamma, const void* beta, size_t bytes) {
  prefetchToL2(gamma, bytes);
  prefetchToL2(beta, bytes);
  source.prefetch();
}

// kLanes threads per row, kVectors vectors of Norm::kAccessBytes per thread. All loads of a row are in flight before
// the first is used. kHighOccupancy: E fills all vectors and registers are bounded, so that a row takes fewer
// instructions and more rows are in flight. That helps where a row waits for more than its own bytes; elsewhere it
// costs up to 7 % (H200, E 768).
template <int kLanes, int kVectors, bool kHighOccupancy, typename Source, typename Norm>
__global__ void __launch_bounds__(kRowNormThreads,
                                  kHighOccupancy ? highOccupancyBlocks(kVectors * Norm::kAccessBytes / kVectorBytes)
                                                 : kNoBound) rowNormVectorKernel(Source source, Norm p) {
  using T = typename Norm::Element;
  if constexpr (Norm::kE4m3 && !hasE4m3()) return;
  constexpr int kWidth = Norm::kAccessBytes / sizeof(T);
  using Raw = std::conditional_t<Norm::kAccessBytes == sizeof(uint4), uint4, uint2>;
  if constexpr (Source::kHasBlocksAhead) {
    if (blockIdx.x < source.blocksAhead()) return source.runBlockAhead(p);
  }
  const unsigned block = blockIdx.x - source.blocksAhead();
  if (block == 0) prefetchNorm(source, p.gamma, p.beta, p.E * sizeof(T));
  if (!source.readsEarly()) waitForPriorGrids();
  const int lane = threadIdx.x % kLanes;
  const int64_t result = static_cast<int64_t>(block) * (kRowNormThreads / kLanes) + threadIdx.x / kLanes;
  const int64_t row = rowOf(p, result);
  const T* addends[Source::kAddends] = {};
  const bool live = row >= 0 && source.template begin < kLanes<kWarpSize ? kLanes : kWarpSize>(row, addends);
  if (Source::kMayReadEarly) waitForPriorGrids();
  const auto column = [&](int i) { return (i * kLanes + lane) * kWidth; };
  const auto inside = [&](int i) { return kHighOccupancy || column(i) < p.E; };
  const auto load = [&](const T* from, Raw(&to)[kVectors]) { loadVectors(from, to, column, inside); };

  Raw raw[Source::kAddends][kVectors], gamma[kVectors], beta[kVectors];
#pragma unroll
  for (int a = 0; a < Source::kAddends; ++a) load(addends[a], raw[a]);
  releaseNextGrid();  // here it also keeps the compiler from moving loads after the sums
  float x[kVectors][kWidth], total = 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    unpackFloats<T>(raw[0][i], x[i]);
#pragma unroll
    for (int a = 1; a < Source::kAddends; ++a) {
      float addend[kWidth];
      unpackFloats<T>(raw[a][i], addend);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[i][j] += addend[j];
    }
    addTo(total, x[i]);
  }
  const bool scaled = kHighOccupancy || live;  // high-occupancy rows use `live` only at the end
  load(scaled ? p.gamma : nullptr, gamma);
  load(scaled ? p.beta : nullptr, beta);
  const int64_t offset = result * p.E;
  if (p.sum && result < p.rows) storeVectors(p.sum + offset, x, column, inside);

  const float squares = centreRow<kLanes>(x, total, p.rms, p.inverse_E, inside);
  const float variance = rowSum<kLanes>(squares) * p.inverse_E;
  const float inverse = scaled ? rsqrtf(variance + p.epsilon) : 0.f;
  T *const y = p.y + offset, *const first = firstRow(p, result);
  if (live) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float scale[kWidth], shift[kWidth];
      unpackFloats<T>(gamma[i], scale);
      unpackFloats<T>(beta[i], shift);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[i][j] = x[i][j] * inverse * scale[j] + shift[j];
      if (!inside(i)) continue;
      if (first) {
        storeFloats(first + column(i), x[i]);
        continue;
      }
      if (!Norm::kTwoTypes || p.y) storeFloats(y + column(i), x[i]);
      if constexpr (Norm::kTwoTypes) storeRow<T>(p.other, offset + column(i), x[i]);
    }
  } else if (result < p.results()) {
    constexpr float kZeros[kWidth] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!inside(i)) continue;
      if (first || !Norm::kTwoTypes || p.y) *reinterpret_cast<Raw*>((first ? first : y) + column(i)) = Raw{};
      if constexpr (Norm::kTwoTypes) {
        if (!first) storeRow<T>(p.other, offset + column(i), kZeros);
      }
    }
  }
}

constexpr int kRowNormBlock = 256;

// One block per row of any size and alignment; the row is summed again for each of the three passes.
template <typename Source, typename Norm>
__global__ void __launch_bounds__(kRowNormBlock) rowNormGenericKernel(Source source, Norm p) {
  using T = typename Norm::Element;
  if constexpr (Norm::kE4m3 && !hasE4m3()) return;
  waitForPriorGrids();
  releaseNextGrid();
  for (int64_t result = blockIdx.x; result < p.results(); result += gridDim.x) {
    const int64_t row = rowOf(p, result);
    T* const first = firstRow(p, result);
    const T* addends[Source::kAddends] = {};
    const bool live = row >= 0 && source.template begin<kWarpSize>(row, addends);
    const auto element = [&](int e) {
      float x = 0.f;
#pragma unroll
      for (int a = 0; a < Source::kAddends; ++a) x += addends[a] ? toFloat(addends[a][e]) : 0.f;
      return x;
    };
    const float mean = rowSumOf<kRowNormBlock>(threadIdx.x, p.E, !p.rms, element) * p.inverse_E;
    const float squares = rowSumOf<kRowNormBlock>(threadIdx.x, p.E, true, [&](int e) {
      const float centred = element(e) - mean;
      return centred * centred;
    });
    const float inverse = rsqrtf(squares * p.inverse_E + p.epsilon);
    for (int e = threadIdx.x; e < p.E; e += kRowNormBlock) {
      const float x = element(e);
      const float y = live ? (x - mean) * inverse * toFloat(p.gamma[e]) + (p.beta ? toFloat(p.beta[e]) : 0.f) : 0.f;
      if (first) {
        first[e] = fromFloat<T>(y);
        continue;
      }
      if (p.sum) p.sum[row * p.E + e] = fromFloat<T>(x);
      if (!Norm::kTwoTypes || p.y) p.y[row * p.E + e] = fromFloat<T>(y);
      if constexpr (Norm::kTwoTypes) storeRow<T>(p.other, row * p.E + e, y);
    }
  }
}

// Launches a kernel, if the device has code for what it stores.
template <typename Source, typename Norm>
cudaError_t launchRowNormKernel(void (*kernel)(Source, Norm), unsigned blocks, int threads, const Source& source,
                                const Norm& p, cudaStream_t stream) {
  if constexpr (Norm::kE4m3) {
    const cudaError_t status = checkE4m3Code(reinterpret_cast<const void*>(kernel));
    if (status != cudaSuccess) return status;
  }
  return launchDependent(kernel, blocks, threads, 0, stream, source, p);
}

// Launches with this many vectors of 16 bytes per thread, or as many bytes in smaller ones.
template <int kLanes, int kVectors, typename Source, typename Norm>
cudaError_t launchRowNormVector(const Source& source, const Norm& p, cudaStream_t stream) {
  constexpr int kEach = kVectors * kVectorBytes / Norm::kAccessBytes;
  const int64_t blocks = ceilDiv<int64_t>(p.results(), kRowNormThreads / kLanes) + source.blocksAhead();
  if (blocks > kMaxGridX) return cudaErrorInvalidValue;
  auto kernel = rowNormVectorKernel<kLanes, kEach, false, Source, Norm>;
  if constexpr (kLanes <= kWarpSize && Source::hasHighOccupancy(kLanes, kVectors)) {
    if (p.E == widthOf<typename Norm::Element>(kLanes, kVectors) && source.wantsHighOccupancy()) {
      kernel = rowNormVectorKernel<kLanes, kEach, true, Source, Norm>;
    }
  }
  return launchRowNormKernel(kernel, static_cast<unsigned>(blocks), kRowNormThreads, source, p, stream);
}

template <typename Source, typename Norm>
cudaError_t launchRowNorm(const Source& source, const Norm& p, cudaStream_t stream) {
  if (p.results() <= 0 || p.E <= 0) return cudaSuccess;
  constexpr int kWidth = kVectorBytes / sizeof(typename Norm::Element);
  const int vectors = p.E / kWidth;
  if (p.E % kWidth == 0 && vectors <= 16) return launchRowNormVector<16, 1>(source, p, stream);
  if (p.E % kWidth == 0 && vectors <= 48) return launchRowNormVector<16, 3>(source, p, stream);
  if (p.E % kWidth == 0 && vectors <= 96) return launchRowNormVector<32, 3>(source, p, stream);
  if (p.E % kWidth == 0 && vectors <= 128) return launchRowNormVector<32, 4>(source, p, stream);
  if (p.E % kWidth == 0 && vectors <= 256) return launchRowNormVector<128, 2>(source, p, stream);
  if (p.E % kWidth == 0 && vectors <= 512) return launchRowNormVector<128, 4>(source, p, stream);
  return launchRowNormKernel(rowNormGenericKernel<Source, Norm>, gridSize(p.results()), kRowNormBlock, source, p,
                             stream);
}

}  // namespace padfree
