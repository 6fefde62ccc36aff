// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (RoFormer, arXiv 2104.09864, section 3.2.2) as a pass of its own, bound by memory.
#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "rotary/launch.h"
#include "rotary/rotation.cuh"

namespace padfree {
namespace {

constexpr int kThreads = 256;
constexpr int kItems = 2;           // a thread has in flight, of two 16-byte vectors each
constexpr int kMaxHeadSize = 2048;  // whose cosines and sines fit in shared memory
constexpr int kTableBytes = 24576;  // at most, of a block's rows

// Two vectors of a row: those of pairs, or two to be copied.
struct Item {
  int row, pair;          // pair: the first of its head, below 0 for columns that are copied
  int64_t first, second;  // elements; -1: there is no second
};

// How a row is divided into vectors and items.
struct RowItems {
  int pairs, per_head;   // of a head: pairs, and items
  int rotated;           // items of all heads; the others are copied
  int vectors, per_row;  // of the row: vectors, and items
};

template <int kWidth>
__device__ inline RowItems rowItems(const RotaryParams& p) {
  const int pairs = p.D / 2, per_head = pairs / kWidth, vectors = p.W / kWidth;
  return {pairs, per_head, p.H * per_head, vectors, (vectors + 1) / 2};
}

template <int kWidth, bool kInterleaved>
__device__ inline Item itemAt(const RotaryParams& p, const RowItems& items, int i) {
  Item item;
  item.row = i / items.per_row;
  const int index = i - item.row * items.per_row, head = index / items.per_head;
  const int64_t start = int64_t{item.row} * p.W;
  if (index < items.rotated) {
    item.pair = (index - head * items.per_head) * kWidth;
    const int column = head * p.D + (kInterleaved ? 2 * item.pair : item.pair);
    item.first = start + column;
    item.second = item.first + (kInterleaved ? kWidth : items.pairs);
  } else {
    item.pair = -1;
    item.first = start + 2 * index * kWidth;
    item.second = 2 * index + 1 < items.vectors ? item.first + kWidth : -1;
  }
  return item;
}

// A block takes `rows` rows. The heads of a row share their angles, which are computed while the first vectors are on
// their way.
template <typename T, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) rotaryVectorKernel(RotaryParams p, int rows) {
  constexpr int kWidth = kVectorBytes / sizeof(T);
  extern __shared__ float table[];  // cosines [rows, D/2], then sines
  waitForPriorGrids();
  releaseNextGrid();
  const int64_t first_row = int64_t{blockIdx.x} * rows;
  const int here = static_cast<int>(min(int64_t{rows}, p.T - first_row));
  const RowItems of_row = rowItems<kWidth>(p);
  const int pairs = of_row.pairs, count = here * of_row.per_row;
  const T* const x = static_cast<const T*>(p.x) + first_row * p.W;
  T* const y = static_cast<T*>(p.y) + first_row * p.W;
  float* const sines = table + rows * pairs;

  bool has_table = false;
  for (int begin = threadIdx.x; begin - static_cast<int>(threadIdx.x) < count; begin += kItems * kThreads) {
    Item items[kItems];
    uint4 raw[kItems][2];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (begin + i * kThreads >= count) continue;
      items[i] = itemAt<kWidth, kInterleaved>(p, of_row, begin + i * kThreads);
      raw[i][0] = *reinterpret_cast<const uint4*>(x + items[i].first);
      if (items[i].second >= 0) raw[i][1] = *reinterpret_cast<const uint4*>(x + items[i].second);
    }
    if (!has_table) {
      for (int i = threadIdx.x; i < here * pairs; i += kThreads) {
        const int row = i / pairs;
        const Rotation rotation = rotationOf(p.positions[first_row + row], p.frequencies[i - row * pairs]);
        table[i] = rotation.cosine;
        sines[i] = rotation.sine;
      }
      __syncthreads();
      has_table = true;
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (begin + i * kThreads >= count) continue;
      const Item& item = items[i];
      if (item.pair < 0) {
        *reinterpret_cast<uint4*>(y + item.first) = raw[i][0];
        if (item.second >= 0) *reinterpret_cast<uint4*>(y + item.second) = raw[i][1];
        continue;
      }
      float value[2][kWidth], cosine[kWidth], sine[kWidth];
#pragma unroll
      for (int k = 0; k < 2; ++k) unpackFloats<T>(raw[i][k], value[k]);
#pragma unroll
      for (int k = 0; k < kWidth; k += 4) {
        const int at = item.row * pairs + item.pair + k;
        const float4 c = *reinterpret_cast<const float4*>(table + at), s = *reinterpret_cast<const float4*>(sines + at);
        cosine[k] = c.x, cosine[k + 1] = c.y, cosine[k + 2] = c.z, cosine[k + 3] = c.w;
        sine[k] = s.x, sine[k + 1] = s.y, sine[k + 2] = s.z, sine[k + 3] = s.w;
      }
      rotatePairs<kInterleaved>(value, cosine, sine);
      storeFloats(y + item.first, value[0]);
      storeFloats(y + item.second, value[1]);
    }
  }
}

// Any sizes: a thread for every pair, and for every column that is copied.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotaryGenericKernel(RotaryParams p) {
  waitForPriorGrids();
  releaseNextGrid();
  const int pairs = p.D / 2, rotated = p.H * pairs;
  const int64_t per_row = p.W - rotated, count = p.T * per_row, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const int64_t row = i / per_row;
    const int index = static_cast<int>(i - row * per_row);
    const T* const x = static_cast<const T*>(p.x) + row * p.W;
    T* const y = static_cast<T*>(p.y) + row * p.W;
    if (index >= rotated) {
      y[rotated + index] = x[rotated + index];
      continue;
    }
    const int head = index / pairs, pair = index - head * pairs;
    const int first = head * p.D + (p.interleaved ? 2 * pair : pair), second = first + (p.interleaved ? 1 : pairs);
    float one = toFloat(x[first]), other = toFloat(x[second]);
    const Rotation rotation = rotationOf(p.positions[row], p.frequencies[pair]);
    rotatePair(one, other, rotation.cosine, rotation.sine);
    y[first] = fromFloat<T>(one);
    y[second] = fromFloat<T>(other);
  }
}

template <typename T>
cudaError_t launch(const RotaryParams& p, cudaStream_t stream) {
  constexpr int kWidth = kVectorBytes / sizeof(T);
  if (p.W % kWidth != 0 || p.D % (2 * kWidth) != 0 || p.D > kMaxHeadSize) {
    const int64_t items = int64_t{p.T} * (p.W - p.H * (p.D / 2));
    return launchDependent(rotaryGenericKernel<T>, gridSize(ceilDiv<int64_t>(items, kThreads)), kThreads, 0, stream, p);
  }
  const int per_row = ceilDiv(p.W / kWidth, 2), row_bytes = p.D * static_cast<int>(sizeof(float));
  const int rows = std::max(std::min({kItems * kThreads / per_row, kTableBytes / row_bytes, p.T}), 1);
  const auto kernel = p.interleaved ? rotaryVectorKernel<T, true> : rotaryVectorKernel<T, false>;
  return launchDependent(kernel, ceilDiv(p.T, rows), kThreads, rows * row_bytes, stream, p, rows);
}

}  // namespace

cudaError_t launchRotary(const RotaryParams& params, cudaStream_t stream) {
  if (params.T <= 0 || params.W <= 0) return cudaSuccess;
  const int64_t rotated = int64_t{params.H} * params.D;
  if (params.H <= 0 || params.D <= 0 || params.D % 2 != 0 || rotated > params.W) return cudaErrorInvalidValue;
  return dispatchActivation(params.type,
                            [&](auto tag) { return launch<typename decltype(tag)::Type>(params, stream); });
}

}  // namespace padfree
