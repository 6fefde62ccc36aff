// SPDX-License-Identifier: Apache-2.0
// Pooling of rows that are normed first, and of the result's L2 norm, in one launch: rows are read once, and what is
// normed is not stored. The blocks of a cluster share the tokens of a sequence, their warps take a token at a time.
// Sums are in a fixed order: results repeat bit by bit, whatever else is in the batch.
#include "common/dependent_launch.cuh"
#include "common/e4m3_code.cuh"
#include "common/ptx/cluster.cuh"
#include "pool/stretch.cuh"

namespace padfree {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kWidth = 8;        // elements of 2 bytes that a lane loads at once
constexpr int kAtOnce = 4;       // columns of a result that a thread makes
constexpr int kClusterSize = 8;  // the most that every GPU with clusters has
constexpr int kTokensAhead = 2;  // rows that every warp has on their way at a time
constexpr int kMostVectors = 4;  // that a lane holds of a row

// The blocks of one sequence wait for each other; kCluster of 1: one block, on GPUs without clusters.
template <int kCluster>
__device__ inline void syncBlocks() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) return clusterSyncMemory();
#endif
  __syncthreads();
}

// Adds the floats that a block of the cluster has at this place of its shared memory.
template <int kCluster>
__device__ inline void addFrom(int block, const float* place, float (&sum)[kAtOnce]) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) return addShared(sum, addressAt(sharedAddress(place), block));
#endif
  addFloats<kAtOnce>(place, sum);
}

// kVectors vectors of kWidth elements a lane.
template <typename T, int kVectors, int kCluster>
__global__ void __launch_bounds__(kThreads) normedPoolKernel(PoolParams p) {
  constexpr int kE = kWarpSize * kVectors * kWidth;  // the widest rows
  __shared__ __align__(16) float sums[kWarps][kE];
  __shared__ __align__(16) float squares[kAtOnce];
  __shared__ float scratch[kWarps];
  const int rank = blockIdx.x % kCluster, b = blockIdx.x / kCluster;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const T *gamma = static_cast<const T*>(p.gamma), *beta = static_cast<const T*>(p.beta);
  if (rank == 0) {
    prefetchToL2(gamma, p.E * sizeof(T));
    prefetchToL2(beta, p.E * sizeof(T));
  }
  waitForPriorGrids();
  releaseNextGrid();
  const auto [first, last] = stretchOf(p, b);
  const float inverse_E = 1.f / p.E;
  const auto column = [&](int i) { return (i * kWarpSize + lane) * kWidth; };

  float sum[kVectors][kWidth] = {};
  constexpr int kStride = kCluster * kWarps;
  for (int t = first + rank * kWarps + warp; t < last; t += kTokensAhead * kStride) {
    uint4 raw[kTokensAhead][kVectors];
#pragma unroll
    for (int n = 0; n < kTokensAhead; ++n) {
      const T* row = static_cast<const T*>(p.x) + static_cast<int64_t>(min(t + n * kStride, last - 1)) * p.E;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        raw[n][i] = column(i) < p.E ? *reinterpret_cast<const uint4*>(row + column(i)) : uint4{};
      }
    }
#pragma unroll
    for (int n = 0; n < kTokensAhead; ++n) {
      if (t + n * kStride >= last) break;
      float x[kVectors][kWidth], total = 0.f, deviations = 0.f;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        unpackFloats<T>(raw[n][i], x[i]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) total += x[i][j];
      }
      const float mean = p.rms ? 0.f : warpSum(total) * inverse_E;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          x[i][j] -= mean;
          if (column(i) < p.E) deviations += x[i][j] * x[i][j];
        }
      }
      const float inverse = rsqrtf(warpSum(deviations) * inverse_E + p.epsilon);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[i][j] += x[i][j] * inverse;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; j += kAtOnce) {
      storeFloats(&sums[warp][column(i) + j], reinterpret_cast<const float (&)[kAtOnce]>(sum[i][j]));
    }
  }
  __syncthreads();
  for (int e = threadIdx.x * kAtOnce; e < p.E; e += kThreads * kAtOnce) {
    float total[kAtOnce] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) addFloats<kAtOnce>(&sums[w][e], total);
    storeFloats(&sums[0][e], total);
  }
  syncBlocks<kCluster>();

  // Scale and shift are those of every token: they come last. A thread makes kAtOnce columns of the result.
  static_assert(kE <= kThreads * kAtOnce);
  const int e = (static_cast<int>(threadIdx.x) * kCluster + rank) * kAtOnce, tokens = last - first;
  const bool some = e < p.E && tokens > 0;
  float y[kAtOnce] = {}, square = 0.f;
  if (some) {
    float scale[kAtOnce], shift[kAtOnce] = {};
#pragma unroll
    for (int block = 0; block < kCluster; ++block) addFrom<kCluster>(block, &sums[0][e], y);
    loadFloats(gamma + e, scale);
    if (beta) loadFloats(beta + e, shift);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      y[j] = y[j] / tokens * scale[j] + shift[j];
      square += y[j] * y[j];
    }
  }
  float inverse = 1.f;
  if (p.normalize) {
    square = blockSum(square, scratch);
    if (threadIdx.x < kAtOnce) squares[threadIdx.x] = square;
    syncBlocks<kCluster>();
    float all[kAtOnce] = {};
#pragma unroll
    for (int block = 0; block < kCluster; ++block) addFrom<kCluster>(block, squares, all);
    inverse = 1.f / fmaxf(sqrtf(all[0]), kLeastNorm);
  }
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    if (e < p.E) storeResult<T>(p, static_cast<int64_t>(b) * p.E + e + j, y[j] * inverse);
  }
  if (kCluster > 1) syncBlocks<kCluster>();  // no block ends while others read its shared memory
}

template <typename T, int kVectors>
cudaError_t launch(const PoolParams& params, cudaStream_t stream) {
  int major = 0;
  const cudaError_t status = majorCapability(major);
  if (status != cudaSuccess) return status;
  const int cluster = major >= 9 ? kClusterSize : 1;
  const int64_t blocks = static_cast<int64_t>(params.B) * cluster;
  if (blocks > kMaxGridX) return cudaErrorInvalidValue;
  const auto kernel = cluster > 1 ? normedPoolKernel<T, kVectors, kClusterSize> : normedPoolKernel<T, kVectors, 1>;
  return launchDependentClusters(kernel, static_cast<unsigned>(blocks), kThreads, cluster, 0, stream, params);
}

}  // namespace

cudaError_t launchNormedPool(const PoolParams& params, cudaStream_t stream) {
  const int vectors = ceilDiv(params.E, kWarpSize * kWidth);
  if (params.E % kWidth != 0 || vectors > kMostVectors || params.mode == PoolMode::kMax) return cudaErrorInvalidValue;
  return dispatchHalf(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (vectors <= 2) return launch<T, 2>(params, stream);
    return vectors == 3 ? launch<T, 3>(params, stream) : launch<T, kMostVectors>(params, stream);
  });
}

}  // namespace padfree
