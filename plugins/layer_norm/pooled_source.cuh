// SPDX-License-Identifier: Apache-2.0
// A pooler beside the rows of a norm: tanh(y W^T + b) for the rows y of sequences' first tokens.
#pragma once

#include "common/ptx/mma.cuh"
#include "layer_norm/residual_source.cuh"

namespace padfree {

// Blocks ahead of those of rows norm what they need once more. So the pooler ends with the norm, of which it takes a
// part: as a product of its own it would begin behind it.
template <typename T>
struct PooledSource : ResidualSource<T, true> {
  static constexpr bool kHasBlocksAhead = true;
  static constexpr int kRows = 16, kColumns = 16;  // of the result, a block
  static constexpr int kWarps = kRowNormThreads / kWarpSize;
  static constexpr int kRowLanes = kRowNormThreads / kRows;
  static constexpr int kWidth = kVectorBytes / sizeof(T);
  static constexpr int kStep = 4 * kWidth;  // columns of y that a quad of lanes holds

  const T* weight;        // [N, E]
  const T* pooler_bias;   // [N]
  const int* cu_seqlens;  // [B+1]
  float* pooled;          // [B, N]
  int N, B;

  explicit PooledSource(const LayerNormParams& params)
      : ResidualSource<T, true>(params),
        weight(static_cast<const T*>(params.pooler.weight)),
        pooler_bias(static_cast<const T*>(params.pooler.bias)),
        cu_seqlens(params.cu_seqlens),
        pooled(params.pooler.y),
        N(params.pooler.N),
        B(params.B) {}

  __host__ __device__ unsigned blocksAhead() const { return ceilDiv(N, kColumns) * ceilDiv(B, kRows); }

  // A row of x: null for that of an empty sequence, with the numbers that norm it.
  struct Row {
    const T* x;
    float mean, inverse;

    __device__ float normed(float x, float scale, float shift) const { return (x - mean) * inverse * scale + shift; }
  };

  // All of what a block ahead does.
  template <typename Norm>
  __device__ void ahead(const Norm& p) const {
    __shared__ Row rows[kRows];
    __shared__ float partial[kWarps][kRows][kColumns];
    const int column = blockIdx.x % ceilDiv(N, kColumns) * kColumns;
    const int sequence = blockIdx.x / ceilDiv(N, kColumns) * kRows;
    prefetchToL2(weight + static_cast<int64_t>(column) * p.E, int64_t{min(kColumns, N - column)} * p.E * sizeof(T));
    waitForPriorGrids();
    releaseNextGrid();
    const int row = threadIdx.x / kRowLanes;
    const Row found = statistics(p, sequence + row);
    if (threadIdx.x % kRowLanes == 0) rows[row] = found;
    __syncthreads();
    multiply(p, rows, column, partial[threadIdx.x / kWarpSize]);
    __syncthreads();
    for (int i = threadIdx.x; i < kRows * kColumns; i += kRowNormThreads) {
      const int b = sequence + i / kColumns, n = column + i % kColumns;
      if (b >= B || n >= N) continue;
      float sum = toFloat(pooler_bias[n]);
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp][i / kColumns][i % kColumns];
      pooled[static_cast<int64_t>(b) * N + n] = tanhf(sum);
    }
  }

 private:
  // The row of sequence b, by kRowLanes threads.
  template <typename Norm>
  __device__ Row statistics(const Norm& p, int b) const {
    const auto startOf = [&](int i) { return i <= B ? sequenceStart(cu_seqlens, i, static_cast<int>(p.rows)) : 0; };
    const int start = startOf(b), end = startOf(b + 1);
    const T* x = start < end ? this->x + static_cast<int64_t>(start) * p.E : nullptr;
    const auto sumOf = [&](auto term) {
      float sum = 0.f;
#pragma unroll 4
      for (int e = threadIdx.x % kRowLanes * kWidth; e < (x ? p.E : 0); e += kRowLanes * kWidth) {
        float numbers[kWidth];
        loadFloats(x + e, numbers);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum += term(numbers[j]);
      }
      return rowSum<kRowLanes>(sum) * p.inverse_E;
    };
    const float mean = p.rms ? 0.f : sumOf([](float number) { return number; });
    const float variance = sumOf([&](float number) { return (number - mean) * (number - mean); });
    return {x, mean, rsqrtf(variance + p.epsilon)};
  }

  // This warp's part of the product: every kWarps-th step of columns of y. The order of the columns inside a step is
  // the same in both factors, such that a lane loads kWidth neighbours.
  template <typename Norm>
  __device__ void multiply(const Norm& p, const Row (&rows)[kRows], int column, float (&to)[kRows][kColumns]) const {
    constexpr int kTiles = kColumns / 8;
    const int lane = threadIdx.x % kWarpSize, r = lane / 4, q = lane % 4;
    const Row pair[2] = {rows[r], rows[r + 8]};
    float c[kTiles][4] = {};
#pragma unroll 1
    for (int step = threadIdx.x / kWarpSize * kStep; step < p.E; step += kWarps * kStep) {
      const int k = step + q * kWidth;
      const auto load = [&](const T* from) {
        return from && k < p.E ? *reinterpret_cast<const uint4*>(from + k) : uint4{};
      };
      const uint4 x[2] = {load(pair[0].x), load(pair[1].x)};
      uint4 w[kTiles];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int n = column + j * 8 + r;
        w[j] = load(n < N ? weight + static_cast<int64_t>(n) * p.E : nullptr);
      }
      float scale[kWidth], shift[kWidth];
      unpackFloats<T>(load(p.gamma), scale);
      unpackFloats<T>(load(p.beta), shift);
      unsigned y[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float numbers[kWidth];
        unpackFloats<T>(x[h], numbers);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto normed = [&](int j) { return pair[h].normed(numbers[j], scale[j], shift[j]); };
          y[h][i] = pair[h].x ? packPair<T>(normed(2 * i), normed(2 * i + 1)) : 0;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const unsigned a[] = {y[0][i], y[1][i], y[0][i + 1], y[1][i + 1]};
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const auto& words = reinterpret_cast<const unsigned(&)[4]>(w[j]);
          multiplyAdd<T>(c[j], a, words[i], words[i + 1]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[r + i / 2 * 8][j * 8 + q * 2 + i % 2] = c[j][i];
    }
  }
};

// The pooler alone, behind its norm.
template <typename T, typename Norm>
__global__ void __launch_bounds__(kRowNormThreads) poolerKernel(PooledSource<T> source, Norm p) {
  source.ahead(p);
}

// A norm with its pooler: beside the rows for the widths that most encoders have, by a kernel of its own for others.
template <typename T, typename Norm>
cudaError_t launchPooledNorm(const LayerNormParams& params, const Norm& norm, cudaStream_t stream) {
  constexpr int kWidth = PooledSource<T>::kWidth;
  if (params.E % kWidth != 0) return cudaErrorInvalidValue;
  if (params.B <= 0 || params.pooler.N <= 0) return launchResidualNorm<T>(params, norm, stream);
  const PooledSource<T> source(params);
  if (norm.rows > 0) {
    if (params.E == 16 * 3 * kWidth) return launchRowNormVector<16, 3>(source, norm, stream);
    if (params.E == kWarpSize * 3 * kWidth) return launchRowNormVector<32, 3>(source, norm, stream);
    if (params.E == kWarpSize * 4 * kWidth) return launchRowNormVector<32, 4>(source, norm, stream);
  }
  const cudaError_t status = launchResidualNorm<T>(params, norm, stream);
  if (status != cudaSuccess) return status;
  return launchRowNormKernel(poolerKernel<T, Norm>, source.blocksAhead(), kRowNormThreads, source, norm, stream);
}

}  // namespace padfree
