// SPDX-License-Identifier: Apache-2.0
// Layer norm and RMS norm of rows that a Source produces. Rows stay in registers between the sum, the variance and the
// result, so that every activation is read once; the statistics take two passes over them in fp32.
//
// A Source is a small struct with
//   bool begin(int64_t row)                        warp-collective; false: the row becomes zeros
//   void load<N>(int column, float (&out)[N])      the N elements at `column` of the row begun last
#pragma once

#include "common/device.cuh"
#include "common/launch.h"

namespace padfree {

template <typename T>
struct RowNorm {
  const T* gamma;  // [E]
  const T* beta;   // [E] or null
  T* y;            // [rows, E]
  T* sum;          // [rows, E] or null: the rows before the norm
  int64_t rows;
  int E;
  float epsilon;
  bool rms;
};

constexpr int kRowNormWarps = 4;

// One warp a row, kVectors 16-byte vectors a lane.
template <typename T, int kVectors, typename Source>
__global__ void __launch_bounds__(kRowNormWarps* kWarpSize) rowNormVectorKernel(Source source, RowNorm<T> p) {
  constexpr int kWidth = kVectorBytes / sizeof(T);
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowNormWarps + threadIdx.x / kWarpSize;
  if (row >= p.rows) return;
  const bool live = source.begin(row);
  float x[kVectors][kWidth];
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = (i * kWarpSize + lane) * kWidth;
    if (live && column < p.E) {
      source.load(column, x[i]);
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[i][j] = 0.f;
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total += x[i][j];
  }
  const float mean = p.rms ? 0.f : warpSum(total) / p.E;
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if ((i * kWarpSize + lane) * kWidth >= p.E) continue;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares += (x[i][j] - mean) * (x[i][j] - mean);
  }
  const float inverse = live ? rsqrtf(warpSum(squares) / p.E + p.epsilon) : 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = (i * kWarpSize + lane) * kWidth;
    if (column >= p.E) continue;
    const int64_t offset = row * p.E + column;
    if (p.sum) storeFloats(p.sum + offset, x[i]);
    float gamma[kWidth], beta[kWidth] = {};
    loadFloats(p.gamma + column, gamma);
    if (p.beta && live) loadFloats(p.beta + column, beta);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x[i][j] = (x[i][j] - mean) * inverse * gamma[j] + beta[j];
    storeFloats(p.y + offset, x[i]);
  }
}

constexpr int kRowNormBlock = 256;

// One block a row of any size and alignment; the row is produced once for each of the three passes.
template <typename T, typename Source>
__global__ void __launch_bounds__(kRowNormBlock) rowNormGenericKernel(Source source, RowNorm<T> p) {
  __shared__ float scratch[kRowNormBlock / kWarpSize];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const bool live = source.begin(row);
    float x[1];
    float total = 0.f, squares = 0.f;
    if (live && !p.rms) {
      for (int e = threadIdx.x; e < p.E; e += kRowNormBlock) {
        source.load(e, x);
        total += x[0];
      }
    }
    const float mean = blockSum(total, scratch) / p.E;
    if (live) {
      for (int e = threadIdx.x; e < p.E; e += kRowNormBlock) {
        source.load(e, x);
        squares += (x[0] - mean) * (x[0] - mean);
      }
    }
    const float inverse = rsqrtf(blockSum(squares, scratch) / p.E + p.epsilon);
    for (int e = threadIdx.x; e < p.E; e += kRowNormBlock) {
      x[0] = 0.f;
      if (live) source.load(e, x);
      if (p.sum) p.sum[row * p.E + e] = fromFloat<T>(x[0]);
      const float y = (x[0] - mean) * inverse * toFloat(p.gamma[e]) + (p.beta ? toFloat(p.beta[e]) : 0.f);
      p.y[row * p.E + e] = fromFloat<T>(live ? y : 0.f);
    }
  }
}

template <typename T, typename Source>
cudaError_t launchRowNorm(const Source& source, const RowNorm<T>& p, cudaStream_t stream) {
  if (p.rows <= 0 || p.E <= 0) return cudaSuccess;
  constexpr int kWidth = kVectorBytes / sizeof(T);
  const int vectors = ceilDiv(p.E, kWidth * kWarpSize);
  const unsigned blocks = gridSize(ceilDiv<int64_t>(p.rows, kRowNormWarps));
  const bool one_pass = p.E % kWidth == 0 && ceilDiv<int64_t>(p.rows, kRowNormWarps) <= kMaxGridX;
  constexpr int kThreads = kRowNormWarps * kWarpSize;
  if (one_pass && vectors <= 1) {
    rowNormVectorKernel<T, 1><<<blocks, kThreads, 0, stream>>>(source, p);
  } else if (one_pass && vectors <= 2) {
    rowNormVectorKernel<T, 2><<<blocks, kThreads, 0, stream>>>(source, p);
  } else if (one_pass && vectors <= 3) {
    rowNormVectorKernel<T, 3><<<blocks, kThreads, 0, stream>>>(source, p);
  } else if (one_pass && vectors <= 4) {
    rowNormVectorKernel<T, 4><<<blocks, kThreads, 0, stream>>>(source, p);
  } else if (one_pass && vectors <= 8) {
    rowNormVectorKernel<T, 8><<<blocks, kThreads, 0, stream>>>(source, p);
  } else {
    rowNormGenericKernel<T><<<gridSize(p.rows), kRowNormBlock, 0, stream>>>(source, p);
  }
  return cudaGetLastError();
}

}  // namespace padfree
