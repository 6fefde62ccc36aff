// SPDX-License-Identifier: Apache-2.0
// A pooler in the launch of its norm: tanh(y W^T + b) for the rows y of sequences' first tokens.
#pragma once

#include "common/ptx/mma.cuh"
#include "layer_norm/residual_source.cuh"

namespace padfree {

// Blocks ahead of those of the rows norm the rows that they need a second time. So the pooler ends with the norm; as a
// separate GEMM it would begin only after the norm. A block loads its part of the weights into shared memory before the
// kernels ahead have ended.
//
// kE: how many elements rows have, for which shared memory is reserved; 0: any number, and weights are read when they
// are multiplied.
template <typename T, int kE>
struct PooledSource : ResidualSource<T, true> {
  static constexpr bool kHasBlocksAhead = true;
  static constexpr int kRows = 16, kColumns = 8;  // of the result, per block
  static constexpr int kWarps = kRowNormThreads / kWarpSize;
  static constexpr int kRowLanes = kRowNormThreads / kRows;
  static constexpr int kWidth = kVectorBytes / sizeof(T);
  static constexpr int kStep = 4 * kWidth;  // columns of y that a quad of lanes holds
  static_assert(kRows * kColumns == kRowNormThreads, "a thread gives a number");

  const T* weight;        // [N, E]
  const T* pooler_bias;   // [N]
  const int* cu_seqlens;  // [B+1]
  float* pooled;          // [B, N]
  int N, B;
  bool early_lengths;

  explicit PooledSource(const LayerNormParams& params)
      : ResidualSource<T, true>(params),
        weight(static_cast<const T*>(params.pooler.weight)),
        pooler_bias(static_cast<const T*>(params.pooler.bias)),
        cu_seqlens(params.cu_seqlens),
        pooled(params.pooler.y),
        N(params.pooler.N),
        B(params.B),
        early_lengths(params.early_lengths) {}

  __host__ __device__ unsigned blocksAhead() const { return ceilDiv(N, kColumns) * ceilDiv(B, kRows); }

  // A row of x, null for an empty sequence, and the numbers that norm it.
  struct Row {
    const T* x;
    float mean, inverse;

    __device__ float normed(float x, float scale, float shift) const { return (x - mean) * inverse * scale + shift; }
  };

  // Everything that a block ahead does.
  template <typename Norm>
  __device__ void runBlockAhead(const Norm& p) const {
    __shared__ Row rows[kRows];
    __shared__ float partial[kWarps][kRows][kColumns];
    __shared__ Stage stage;
    const int column = blockIdx.x % ceilDiv(N, kColumns) * kColumns;
    const int sequence = blockIdx.x / ceilDiv(N, kColumns) * kRows;
    const int row = threadIdx.x / kRowLanes, b = sequence + row, n = column + threadIdx.x % kRowLanes;
    fill(stage, p, column);
    float sum = n < N ? toFloat(pooler_bias[n]) : 0.f;
    const T* x = early_lengths ? firstRow(p, b) : nullptr;
    waitForPriorGrids();
    releaseNextGrid();
    if (!early_lengths) x = firstRow(p, b);
    const Row row_statistics = statistics(p, x);
    if (threadIdx.x % kRowLanes == 0) rows[row] = row_statistics;
    __syncthreads();
    multiply(p, stage, rows, column, partial[threadIdx.x / kWarpSize]);
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp][row][threadIdx.x % kRowLanes];
    if (b < B && n < N) pooled[static_cast<int64_t>(b) * N + n] = tanhf(sum);
  }

 private:
  static constexpr int kApart = 32;  // elements between rows: neighbours are half of the banks apart

  struct Staged {
    static constexpr int kStride = kE + kApart;

    alignas(kVectorBytes) T weight[kColumns * kStride];
    alignas(kVectorBytes) T gamma[kE];
    alignas(kVectorBytes) T beta[kE];
  };
  struct Nothing {};
  using Stage = std::conditional_t<(kE > 0), Staged, Nothing>;

  __device__ static uint4 load(const T* from) { return *reinterpret_cast<const uint4*>(from); }

  // Keeps the rows of the weight that belong to kColumns columns of the result, with gamma and beta. Where kE is 0,
  // only prefetches these rows into the L2 cache.
  template <typename Norm>
  __device__ void fill(Stage& stage, const Norm& p, int column) const {
    if constexpr (kE > 0) {
      const auto keep = [](T* to, uint4 vector) { *reinterpret_cast<uint4*>(to) = vector; };
#pragma unroll
      for (int i = threadIdx.x * kWidth; i < kColumns * kE; i += kRowNormThreads * kWidth) {
        const int n = i / kE, e = i % kE;
        const bool inside = column + n < N;
        keep(&stage.weight[n * Staged::kStride + e],
             inside ? load(weight + static_cast<int64_t>(column + n) * kE + e) : uint4{});
      }
      for (int e = threadIdx.x * kWidth; e < kE; e += kRowNormThreads * kWidth) {
        keep(&stage.gamma[e], load(p.gamma + e));
        keep(&stage.beta[e], p.beta ? load(p.beta + e) : uint4{});
      }
    } else {
      const int columns = min(kColumns, N - column);
      prefetchToL2(weight + static_cast<int64_t>(column) * p.E, static_cast<int64_t>(columns) * p.E * sizeof(T));
    }
  }

  // The first row of sequence b, null where it has none.
  template <typename Norm>
  __device__ const T* firstRow(const Norm& p, int b) const {
    const auto startOf = [&](int i) { return i <= B ? sequenceStart(cu_seqlens, i, static_cast<int>(p.rows)) : 0; };
    const int start = startOf(b);
    return start < startOf(b + 1) ? this->x + static_cast<int64_t>(start) * p.E : nullptr;
  }

  // The statistics that norm a row, computed by kRowLanes threads.
  template <typename Norm>
  __device__ Row statistics(const Norm& p, const T* x) const {
    const auto sumOf = [&](auto term) {
      float sum = 0.f;
#pragma unroll 6
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

  // This warp's part of the GEMM: every kWarps-th step of columns of y. The order of the columns inside a step is
  // the same in both factors, so that a lane loads kWidth neighbours.
  template <typename Norm>
  __device__ void multiply(const Norm& p, const Stage& stage, const Row (&rows)[kRows], int column,
                           float (&to)[kRows][kColumns]) const {
    const int lane = threadIdx.x % kWarpSize, r = lane / 4, q = lane % 4;
    const Row pair[2] = {rows[r], rows[r + 8]};
    float c[4] = {};
#pragma unroll 1
    for (int step = threadIdx.x / kWarpSize * kStep; step < p.E; step += kWarps * kStep) {
      const int e = step + q * kWidth;
      const bool inside = kE > 0 || e < p.E;
      const auto loadIf = [&](bool condition, const T* from) { return condition ? load(from + e) : uint4{}; };
      const uint4 x[2] = {loadIf(inside && pair[0].x, pair[0].x), loadIf(inside && pair[1].x, pair[1].x)};
      uint4 w, gamma, beta;
      if constexpr (kE > 0) {
        w = load(&stage.weight[r * Staged::kStride + e]);
        gamma = load(&stage.gamma[e]);
        beta = load(&stage.beta[e]);
      } else {
        w = loadIf(inside && column + r < N, weight + static_cast<int64_t>(column + r) * p.E);
        gamma = loadIf(inside, p.gamma);
        beta = loadIf(inside && p.beta, p.beta);
      }
      float scale[kWidth], shift[kWidth];
      unpackFloats<T>(gamma, scale);
      unpackFloats<T>(beta, shift);
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
      const auto& words = reinterpret_cast<const unsigned (&)[4]>(w);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const unsigned a[] = {y[0][i], y[1][i], y[0][i + 1], y[1][i + 1]};
        multiplyAdd<T>(c, a, words[i], words[i + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) to[r + i / 2 * 8][q * 2 + i % 2] = c[i];
  }
};

// The pooler alone, after its norm.
template <typename T, typename Norm>
__global__ void __launch_bounds__(kRowNormThreads) poolerKernel(PooledSource<T, 0> source, Norm p) {
  source.runBlockAhead(p);
}

template <int kLanes, int kVectors, typename T, typename Norm>
cudaError_t launchBesidePooler(const LayerNormParams& params, const Norm& norm, cudaStream_t stream) {
  const PooledSource<T, widthOf<T>(kLanes, kVectors)> source(params);
  return launchRowNormVector<kLanes, kVectors>(source, norm, stream);
}

// A norm with its pooler: in one launch for the widths that most encoders have, and in a second launch for others.
template <typename T, typename Norm>
cudaError_t launchPooledNorm(const LayerNormParams& params, const Norm& norm, cudaStream_t stream) {
  if (params.E % PooledSource<T, 0>::kWidth != 0) return cudaErrorInvalidValue;
  if (params.B <= 0 || params.pooler.N <= 0) return launchResidualNorm<T>(params, norm, stream);
  if (norm.rows > 0) {
    if (params.E == widthOf<T>(16, 3)) return launchBesidePooler<16, 3, T>(params, norm, stream);
    if (params.E == widthOf<T>(32, 3)) return launchBesidePooler<32, 3, T>(params, norm, stream);
    if (params.E == widthOf<T>(32, 4)) return launchBesidePooler<32, 4, T>(params, norm, stream);
  }
  const cudaError_t status = launchResidualNorm<T>(params, norm, stream);
  if (status != cudaSuccess) return status;
  const PooledSource<T, 0> source(params);
  return launchRowNormKernel(poolerKernel<T, Norm>, source.blocksAhead(), kRowNormThreads, source, norm, stream);
}

}  // namespace padfree
