// SPDX-License-Identifier: Apache-2.0
// Pooling of rows that are normed first, and the result's L2 norm, in one launch: rows are read once, and normed rows
// are not stored. Where a mode takes one row of a sequence, a warp does that. The tokens of a mean are divided among
// the warps of a block, or of a cluster where there are few sequences, whose first block makes the result. On one GPU,
// only T and B decide the order of sums, so that results repeat bit by bit.
#include "common/dependent_launch.cuh"
#include "common/e4m3_code.cuh"
#include "common/ptx/cluster.cuh"
#include "common/row_norm.cuh"
#include "pool/token_range.cuh"

namespace padfree {
namespace {

constexpr int kWidth = 8;             // elements of 2 bytes that a lane loads at once
constexpr int kColumnsPerThread = 4;  // columns of a result that a thread makes
constexpr int kMaxVectors = 4;        // of a row, in a lane

// How many blocks share the tokens of a sequence: enough for each of an H200's 132 multiprocessors to have one; a
// single one where a block has all rows in flight at once. 8 is the largest cluster that every GPU with clusters
// supports.
int clusterSize(const PoolParams& p, int tokens_at_once, int major) {
  if (major < 9 || p.T <= tokens_at_once) return 1;
  return p.B <= 8 ? 8 : p.B <= 32 ? 4 : 1;
}

// kVectors vectors of kWidth elements per lane, for rows of up to kE elements.
template <int kVectors>
struct Shape {
  static constexpr int kE = kWarpSize * kVectors * kWidth;
  static constexpr int kWarps = kVectors <= 2 ? 16 : 8;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kSlots = kWarps / 2;                   // sums of warps in shared memory
  static constexpr int kTokensAhead = kVectors <= 2 ? 4 : 2;  // rows that a warp has in flight
  static_assert(kE <= kThreads * kColumnsPerThread, "a thread makes its columns in one round");
};

// The first of the columns that are in vector i of this lane.
__device__ inline int columnOf(int i) {
  return (i * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize) * kWidth;
}

template <int kVectors>
__device__ void loadRow(const PoolParams& p, const void* row, bool exists, uint4 (&to)[kVectors]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to[i] = exists && columnOf(i) < p.E ? static_cast<const uint4*>(row)[columnOf(i) / kWidth] : uint4{};
  }
}

// A row minus its mean, in fp32; returns the factor that gives it a variance of 1.
template <typename T, int kVectors>
__device__ float unpackCentred(const PoolParams& p, const uint4 (&row)[kVectors], float (&x)[kVectors][kWidth]) {
  const float inverse_E = 1.f / p.E;
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    unpackFloats<T>(row[i], x[i]);
    addTo(total, x[i]);
  }
  const float squares = centreRow<kWarpSize>(x, total, p.rms, inverse_E, [&](int i) { return columnOf(i) < p.E; });
  return rsqrtf(warpSum(squares) * inverse_E + p.epsilon);
}

template <typename T>
__device__ const T* rowOf(const PoolParams& p, int token) {
  return static_cast<const T*>(p.x) + static_cast<int64_t>(token) * p.E;
}

// sum += the rows of tokens first, first + stride, ... before last, each minus its mean and divided by its standard
// deviation.
template <typename T, int kVectors>
__device__ void sumNormedRows(const PoolParams& p, int first, int last, int stride, float (&sum)[kVectors][kWidth]) {
  constexpr int kAhead = Shape<kVectors>::kTokensAhead;
  for (int t = first; t < last; t += kAhead * stride) {
    uint4 rows[kAhead][kVectors];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) loadRow(p, rowOf<T>(p, t + n * stride), t + n * stride < last, rows[n]);
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (t + n * stride >= last) break;
      float x[kVectors][kWidth];
      const float inverse = unpackCentred<T>(p, rows[n], x);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[i][j] += x[i][j] * inverse;
      }
    }
  }
}

constexpr int kRowThreads = 128;

// Modes that take one row of a sequence: each row by a warp, which waits for no other.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kRowThreads) normedRowKernel(PoolParams p) {
  const int b = (blockIdx.x * kRowThreads + threadIdx.x) / kWarpSize;
  const bool live = b < p.B;
  uint4 gamma[kVectors], beta[kVectors], row[kVectors];
  loadRow(p, p.gamma, live, gamma);
  loadRow(p, p.beta, live && p.beta, beta);
  TokenRange token{};
  if (live && p.early_lengths) token = tokenRangeOf(p, b);
  waitForPriorGrids();
  releaseNextGrid();
  if (live && !p.early_lengths) token = tokenRangeOf(p, b);
  const bool has_row = token.first < token.last;
  loadRow(p, rowOf<T>(p, token.first), has_row, row);
  float y[kVectors][kWidth], square = 0.f;
  const float inverse = unpackCentred<T>(p, row, y);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float scale[kWidth], shift[kWidth];
    unpackFloats<T>(gamma[i], scale);
    unpackFloats<T>(beta[i], shift);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      y[i][j] = has_row ? y[i][j] * inverse * scale[j] + shift[j] : 0.f;
      square += y[i][j] * y[i][j];
    }
  }
  const float factor = p.normalize ? 1.f / fmaxf(sqrtf(warpSum(square)), kMinNorm) : 1.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!live || columnOf(i) >= p.E) continue;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y[i][j] *= factor;
    const int64_t index = static_cast<int64_t>(b) * p.E + columnOf(i);
    if (p.y_fp32) {
      storeFloats(p.y_fp32 + index, reinterpret_cast<const float (&)[4]>(y[i][0]));
      storeFloats(p.y_fp32 + index + 4, reinterpret_cast<const float (&)[4]>(y[i][4]));
    } else {
      storeFloats(static_cast<T*>(p.y) + index, y[i]);
    }
  }
}

template <typename T, int kVectors, int kCluster>
__global__ void __launch_bounds__(Shape<kVectors>::kThreads) normedPoolKernel(PoolParams p) {
  using S = Shape<kVectors>;
  __shared__ __align__(16) float sums[S::kSlots][S::kE];
  __shared__ __align__(16) float other_sums[kCluster > 1 ? kCluster - 1 : 1][S::kE];  // the other blocks' sums
  __shared__ float scratch[S::kWarps];
  const int rank = blockIdx.x % kCluster, b = blockIdx.x / kCluster;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int e = threadIdx.x * kColumnsPerThread;  // this thread's columns of sums and result
  float scale[kColumnsPerThread] = {}, shift[kColumnsPerThread] = {};
  if (rank == 0 && e < p.E) {
    loadFloats(static_cast<const T*>(p.gamma) + e, scale);
    if (p.beta) loadFloats(static_cast<const T*>(p.beta) + e, shift);
  }
  TokenRange tokens{};
  if (p.early_lengths) tokens = tokenRangeOf(p, b);
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) clusterSync();  // all blocks have begun, and have shared memory
#endif
  waitForPriorGrids();
  releaseNextGrid();
  if (!p.early_lengths) tokens = tokenRangeOf(p, b);

  float sum[kVectors][kWidth] = {};
  sumNormedRows<T>(p, tokens.first + rank * S::kWarps + warp, tokens.last, kCluster * S::kWarps, sum);
  // The upper half of the warps leaves its sums, the lower half adds its own.
  float* slot = &sums[warp % S::kSlots][lane * kWidth];
  const bool upper = warp >= S::kSlots;
  const auto storeSums = [&] {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; j += kColumnsPerThread) {
        auto& part = reinterpret_cast<float (&)[kColumnsPerThread]>(sum[i][j]);
        float* target = slot + i * kWarpSize * kWidth + j;
        if (!upper) addFloats(target, part);
        storeFloats(target, part);
      }
    }
  };
  if (upper) storeSums();
  __syncthreads();
  if (!upper) storeSums();
  __syncthreads();
  float y[kColumnsPerThread] = {};
  if (e < p.E) {
#pragma unroll
    for (int w = 0; w < S::kSlots; ++w) addFloats(&sums[w][e], y);
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) {
    if (rank > 0 && e < p.E) storeInCluster(addressAt(sharedAddress(&other_sums[rank - 1][e]), 0), y);
    clusterSyncMemory();
    if (rank > 0) return;
    if (e < p.E) {
#pragma unroll
      for (int block = 0; block < kCluster - 1; ++block) addFloats(&other_sums[block][e], y);
    }
  }
#endif
  // Scale and shift are the same for every token: they come last.
  const int count = tokens.last - tokens.first;
  float square = 0.f;
#pragma unroll
  for (int j = 0; j < kColumnsPerThread; ++j) {
    y[j] = count > 0 ? y[j] / count * scale[j] + shift[j] : 0.f;
    square += y[j] * y[j];
  }
  const float inverse = p.normalize ? 1.f / fmaxf(sqrtf(blockSum(square, scratch)), kMinNorm) : 1.f;
#pragma unroll
  for (int j = 0; j < kColumnsPerThread; ++j) {
    if (e < p.E) storeResult<T>(p, static_cast<int64_t>(b) * p.E + e + j, y[j] * inverse);
  }
}

template <typename T, int kVectors>
cudaError_t launch(const PoolParams& params, cudaStream_t stream) {
  if (params.mode != PoolMode::kMean) {
    const unsigned blocks = ceilDiv(params.B, kRowThreads / kWarpSize);
    return launchDependent(normedRowKernel<T, kVectors>, blocks, kRowThreads, 0, stream, params);
  }
  int major = 0;
  const cudaError_t status = majorCapability(major);
  if (status != cudaSuccess) return status;
  using S = Shape<kVectors>;
  const int cluster = clusterSize(params, S::kWarps * S::kTokensAhead, major);
  const int64_t blocks = static_cast<int64_t>(params.B) * cluster;
  if (blocks > kMaxGridX) return cudaErrorInvalidValue;
  const auto kernel = cluster == 8   ? normedPoolKernel<T, kVectors, 8>
                      : cluster == 4 ? normedPoolKernel<T, kVectors, 4>
                                     : normedPoolKernel<T, kVectors, 1>;
  return launchDependentClusters(kernel, static_cast<unsigned>(blocks), S::kThreads, cluster, 0, stream, params);
}

}  // namespace

cudaError_t launchNormedPool(const PoolParams& params, cudaStream_t stream) {
  const int vectors = ceilDiv(params.E, kWarpSize * kWidth);
  if (params.E % kWidth != 0 || vectors > kMaxVectors || params.mode == PoolMode::kMax) return cudaErrorInvalidValue;
  return dispatchHalf(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (vectors <= 2) return launch<T, 2>(params, stream);
    return vectors == 3 ? launch<T, 3>(params, stream) : launch<T, kMaxVectors>(params, stream);
  });
}

}  // namespace padfree
