// SPDX-License-Identifier: Apache-2.0
// GEMMs on packed tokens for GPUs that have no kernel of their own: mma.sync and cp.async (PTX ISA), as sm_80 has
// them, e4m3 as sm_89 has it. A block sums a tile of tokens and features while stages of the reduction stream through
// shared memory; the epilogue is chosen at run time, so that there is one kernel for each type.
#include <cstdint>
#include <type_traits>

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/e4m3_code.cuh"
#include "common/panel.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/mma.cuh"
#include "linear/activation.cuh"
#include "linear/mma_kernel.h"
#include "linear/rotation.cuh"
#include "linear/row_scale.cuh"

namespace padfree {
namespace {

constexpr int kTileTokens = 128, kTileFeatures = 128;
constexpr int kWarpTokens = 32, kWarpFeatures = 64;
static_assert(kWarpFeatures == kMomentFeatures);  // a warp takes the moments of its rows
constexpr int kWarpColumns = kTileFeatures / kWarpFeatures;
constexpr int kThreads = kTileTokens / kWarpTokens * kWarpColumns * kWarpSize;
constexpr int kTokenBlocks = kWarpTokens / 16, kFeatureBlocks = kWarpFeatures / 8;  // of one mma.sync

constexpr int kStages = 3;
constexpr int kDepthBytes = kNarrowPanelRowBytes;  // of a row, that a stage has: 32 numbers of fp16, 64 of e4m3
constexpr int kDepthChunks = kDepthBytes / kVectorBytes;
constexpr int kStepChunks = 2;  // that mma.sync takes of a row
constexpr int kInputBytes = kTileTokens * kDepthBytes, kWeightBytes = kTileFeatures * kDepthBytes;
constexpr int kStageBytes = kInputBytes + kWeightBytes;
constexpr int kSharedBytes = kStages * kStageBytes + kTileTokens * static_cast<int>(sizeof(float2));
// Two blocks, 1 KB of each the system's, in the 100 KB of a multiprocessor of sm_86, sm_89 and sm_120.
static_assert(2 * (kSharedBytes + 1024) <= 100 * 1024);

struct Work : LinearParams {
  const float2* moments_in;  // of what is normed, or null
  int groups_in, feature_tiles;
  float per_group, epsilon, per_y_scale;
};

template <typename T>
struct HalfOperands {
  using Result = T;
  using Element = T;  // of the reduction
  static constexpr bool kScaled = false;
  // A stage's weights are rows of the reduction, [K,N], with all of the tile's features.
  static constexpr int kRowBytes = kTileFeatures * static_cast<int>(sizeof(T)), kRowChunks = kRowBytes / kVectorBytes;
  static constexpr int kRows = kWeightBytes / kRowBytes;

  static __device__ int weightOffset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ (row & 7)) * kVectorBytes);  // eight rows in banks of their own
  }
  static __device__ void fetchWeight(unsigned char* shared, const Work& p, int stage, int feature) {
#pragma unroll
    for (int begin = 0; begin < kRows * kRowChunks; begin += kThreads) {
      const int i = begin + static_cast<int>(threadIdx.x), row = i / kRowChunks, chunk = i % kRowChunks;
      const int k = stage * kRows + row, n = feature + chunk * (kVectorBytes / static_cast<int>(sizeof(T)));
      const bool valid = k < p.K && n < p.N;
      const T* const weight = static_cast<const T*>(p.weight);
      copyAsync16(shared + weightOffset(row, chunk), valid ? weight + int64_t{k} * p.N + n : weight, valid);
    }
  }
  // The operands of two blocks of 8 features, the first of which is `block` of the tile's.
  static __device__ void loadWeight(unsigned (&b)[4], const unsigned char* shared, int block, int step, int lane) {
    const int row = step * 16 + lane / 8 % 2 * 8 + lane % 8;
    loadMatricesTransposed(b, shared + weightOffset(row, block + lane / 16));
  }
  static __device__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    multiplyAdd<T>(sum, a, b0, b1);
  }
};

// Copies a stage of 128 rows of `row_bytes` bytes each, from the row `first` of `rows` on; zeros where there are none.
__device__ inline void fetchRows(unsigned char* shared, const void* data, int rows, int first, int64_t row_bytes,
                                 int stage) {
  static_assert(kTileTokens == kTileFeatures);
#pragma unroll
  for (int begin = 0; begin < kTileTokens * kDepthChunks; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x), row = i / kDepthChunks, chunk = i % kDepthChunks;
    const int64_t byte = int64_t{stage} * kDepthBytes + chunk * kVectorBytes;
    const bool valid = first + row < rows && byte < row_bytes;
    const char* const source = static_cast<const char*>(data);
    copyAsync16(shared + narrowPanelOffset(row, chunk), valid ? source + (first + row) * row_bytes + byte : source,
                valid);
  }
}

template <typename T>
struct E4m3Operands {
  using Result = T;
  using Element = uint8_t;
  static constexpr bool kScaled = true;

  // Weights are rows of features, [N,K].
  static __device__ void fetchWeight(unsigned char* shared, const Work& p, int stage, int feature) {
    fetchRows(shared, p.weight, p.N, feature, p.K, stage);
  }
  static __device__ void loadWeight(unsigned (&b)[4], const unsigned char* shared, int block, int step, int lane) {
    const int row = block * 8 + lane / 16 * 8 + lane % 8;
    loadMatrices(b, shared + narrowPanelOffset(row, step * kStepChunks + lane / 8 % 2));
  }
  static __device__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    multiplyAddE4m3(sum, a, b0, b1);
  }
};

// A lane has the sums of tokens lane / 4 and lane / 4 + 8 of a block of 16, each of the features lane % 4 * 2 and the
// next of a block of 8.
using Sums = float[kTokenBlocks][kFeatureBlocks][4];

template <typename Operands>
__device__ void multiplyStage(Sums& sums, const unsigned char* stage, int token, int feature, int lane) {
#pragma unroll
  for (int step = 0; step < kDepthChunks / kStepChunks; ++step) {
    unsigned a[kTokenBlocks][4];
#pragma unroll
    for (int i = 0; i < kTokenBlocks; ++i) {
      loadMatrices(a[i], stage + narrowPanelOffset(token + i * 16 + lane % 16, step * kStepChunks + lane / 16));
    }
#pragma unroll
    for (int j = 0; j < kFeatureBlocks; j += 2) {
      unsigned b[4];
      Operands::loadWeight(b, stage + kInputBytes, feature / 8 + j, step, lane);
#pragma unroll
      for (int i = 0; i < kTokenBlocks; ++i) {
        Operands::multiply(sums[i][j], a[i], b[0], b[1]);
        Operands::multiply(sums[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// A lane's part of a row: two features of each block of 8.
using RowValues = float[kFeatureBlocks][2];
constexpr int kLaneRows = 2 * kTokenBlocks;

// The row i of those that a lane has the sums of, without an address: registers have none.
__device__ inline void copyRow(RowValues& value, const Sums& sums, int i) {
#pragma unroll
  for (int j = 0; j < kFeatureBlocks; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      value[j][k] = sums[0][j][k];
#pragma unroll
      for (int other = 1; other < kLaneRows; ++other) {
        if (i == other) value[j][k] = sums[other / 2][j][other % 2 * 2 + k];
      }
    }
  }
}

// What becomes of the sums of one row, whose first feature here is `feature`. A row beyond T, and features beyond N,
// are computed but not stored. Four lanes share a row.
template <typename Operands>
class RowEpilogue {
  using T = typename Operands::Result;

 public:
  __device__ RowEpilogue(const Work& work, int row, int feature, float2 scale, int lane)
      : p_(work), row_(row), first_(feature), lane_(lane), is_row_(row < work.T), scale_(scale) {}

  // value: the row's sums, which become its results.
  __device__ void run(RowValues& value) const {
    forEachFeature([&](int j, int feature) { addBias(value[j], feature); });
    if (p_.gated) return storeGated(value);
    if (p_.rotary_features > 0) rotate(value);
    forEachFeature([&](int j, int feature) {
      for (float& x : value[j]) x = activate(x, p_.activation);
      if (p_.residual) addResidual(value[j], feature);
      store(value[j], feature, p_.N);
    });
    if (p_.moments && first_ < p_.N) storeMoments(value);
  }

 private:
  // Calls body(block, feature) for the blocks of features that there are; feature is the lane's first.
  template <typename Body>
  __device__ void forEachFeature(Body body) const {
#pragma unroll
    for (int j = 0; j < kFeatureBlocks; ++j) {
      const int feature = first_ + j * 8 + lane_ % 4 * 2;
      if (feature < p_.N) body(j, feature);
    }
  }

  static __device__ float2 pairAt(const void* values, int64_t offset) {
    return unpackPair<T>(*reinterpret_cast<const unsigned*>(static_cast<const T*>(values) + offset));
  }
  static __device__ float2 floatsAt(const float* values, int offset) {
    return *reinterpret_cast<const float2*>(values + offset);
  }

  __device__ void addBias(float (&value)[2], int feature) const {
    const float2 bias = p_.bias ? pairAt(p_.bias, feature) : float2{0.f, 0.f};
    float2 scale = {1.f, 1.f};
    if (p_.x_moments) scale = {scale_.x, scale_.x};
    if constexpr (Operands::kScaled) {
      const float2 of_feature = floatsAt(p_.scale, feature);
      scale = {scale.x * of_feature.x, scale.y * of_feature.y};
    }
    value[0] = fmaf(scale.x, value[0], bias.x);
    value[1] = fmaf(scale.y, value[1], bias.y);
  }

  __device__ void addResidual(float (&value)[2], int feature) const {
    if (!is_row_) return;
    float2 residual = pairAt(p_.residual, int64_t{row_} * p_.N + feature), gamma = {1.f, 1.f};
    if (p_.residual_moments) {
      residual = {fmaf(scale_.x, residual.x, scale_.y), fmaf(scale_.x, residual.y, scale_.y)};
      gamma = pairAt(p_.residual_scale, feature);
    }
    value[0] = fmaf(gamma.x, residual.x, value[0]);
    value[1] = fmaf(gamma.y, residual.y, value[1]);
  }

  // Pairs are 8 features apart: of neighbouring blocks.
  __device__ void rotate(RowValues& value) const {
    const float position = is_row_ ? static_cast<float>(p_.positions[row_]) : 0.f;
#pragma unroll
    for (int j = 0; j < kFeatureBlocks; j += 2) {
      const int feature = first_ + j * 8;
      if (feature >= p_.rotary_features) continue;
      const float2 frequency = floatsAt(p_.frequencies, feature / 2 + lane_ % 4 * 2);
      rotatePair(value[j][0], value[j + 1][0], position * frequency.x);
      rotatePair(value[j][1], value[j + 1][1], position * frequency.y);
    }
  }

  // Stores gates of u and v, which are in neighbouring blocks.
  __device__ void storeGated(const RowValues& value) const {
#pragma unroll
    for (int j = 0; j < kFeatureBlocks; j += 2) {
      const int feature = first_ + j * 8;
      if (feature >= p_.N) continue;
      const auto& u = value[j];
      const auto& v = value[j + 1];
      const float gate[2] = {activate(u[0], p_.activation) * v[0], activate(u[1], p_.activation) * v[1]};
      store(gate, feature / 2 + lane_ % 4 * 2, p_.N / 2);
    }
  }

  __device__ void store(const float (&value)[2], int feature, int width) const {
    if (!is_row_) return;
    const int64_t offset = int64_t{row_} * width + feature;
    if (p_.y) *reinterpret_cast<unsigned*>(static_cast<T*>(p_.y) + offset) = packPair<T>(value[0], value[1]);
    if constexpr (Operands::kScaled) {
      if (!p_.y_e4m3) return;
      const unsigned pair = packE4m3(value[0] * p_.per_y_scale, value[1] * p_.per_y_scale);
      *reinterpret_cast<uint16_t*>(static_cast<unsigned char*>(p_.y_e4m3) + offset) = static_cast<uint16_t>(pair);
    }
  }

  // Stores the moments of the numbers that y gets. Called by all lanes of the warp.
  __device__ void storeMoments(const RowValues& value) const {
    float2 rounded[kFeatureBlocks];
    float sum = 0, squares = 0;
#pragma unroll
    for (int j = 0; j < kFeatureBlocks; ++j) {
      rounded[j] = unpackPair<T>(packPair<T>(value[j][0], value[j][1]));
      sum += rounded[j].x + rounded[j].y;
    }
    const float mean = quadSum(sum) / kMomentFeatures;
#pragma unroll
    for (const float2& pair : rounded) {
      squares = fmaf(pair.x - mean, pair.x - mean, squares);
      squares = fmaf(pair.y - mean, pair.y - mean, squares);
    }
    squares = quadSum(squares);
    if (lane_ % 4 != 0 || !is_row_) return;
    float2* const moments = reinterpret_cast<float2*>(p_.moments);
    moments[int64_t{first_ / kMomentFeatures} * p_.T + row_] = {mean, squares};
  }

  static __device__ float quadSum(float x) {
    x += __shfl_xor_sync(kFullMask, x, 1);
    return x + __shfl_xor_sync(kFullMask, x, 2);
  }

  const Work& p_;
  const int row_, first_, lane_;
  const bool is_row_;
  const float2 scale_;  // and shift, of what is normed
};

template <typename Operands>
__device__ void computeTile(const Work& work) {
  extern __shared__ __align__(128) unsigned char shared[];
  float2* const scales = reinterpret_cast<float2*>(shared + kStages * kStageBytes);
  const int token = static_cast<int>(blockIdx.x) / work.feature_tiles * kTileTokens;
  const int feature = static_cast<int>(blockIdx.x) % work.feature_tiles * kTileFeatures;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warp_token = warp / kWarpColumns * kWarpTokens, warp_feature = warp % kWarpColumns * kWarpFeatures;
  const int64_t row_bytes = work.K * static_cast<int64_t>(sizeof(typename Operands::Element));
  const int stages = static_cast<int>(ceilDiv<int64_t>(row_bytes, kDepthBytes));

  const auto fetch = [&](int stage) {
    if (stage < stages) {
      unsigned char* const stage_memory = shared + stage % kStages * kStageBytes;
      fetchRows(stage_memory, work.x, work.T, token, row_bytes, stage);
      Operands::fetchWeight(stage_memory + kInputBytes, work, stage, feature);
    }
    commitCopies();  // an empty group if nothing is left: waitCopies counts groups
  };
  waitForPriorGrids();
  releaseNextGrid();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);
  if (work.moments_in && threadIdx.x < kTileTokens) {
    const int row = token + static_cast<int>(threadIdx.x);
    scales[threadIdx.x] = row < work.T ? scaleOfRow(work.moments_in + row, work) : float2{0.f, 0.f};
  }

  Sums sums = {};
  for (int stage = 0; stage < stages; ++stage) {
    waitCopies<kStages - 2>();
    __syncthreads();  // all threads' copies have arrived, and all warps have left the stage that is fetched next
    fetch(stage + kStages - 1);
    multiplyStage<Operands>(sums, shared + stage % kStages * kStageBytes, warp_token, warp_feature, lane);
  }

#pragma unroll 1  // an epilogue is much code
  for (int i = 0; i < kLaneRows; ++i) {
    const int row = warp_token + i * 8 + lane / 4;
    const float2 scale = work.moments_in ? scales[row] : float2{1.f, 0.f};
    RowValues value;
    copyRow(value, sums, i);
    RowEpilogue<Operands>(work, token + row, feature + warp_feature, scale, lane).run(value);
  }
}

// Whether the architecture that is compiled for multiplies such operands.
template <typename Operands>
constexpr bool hasProducts() {
  return !Operands::kScaled || hasE4m3();
}

template <typename Operands>
__global__ void __launch_bounds__(kThreads, 2) linearMmaKernel(const __grid_constant__ Work work) {
  if constexpr (hasProducts<Operands>()) computeTile<Operands>(work);
}

Work makeWork(const LinearParams& params) {
  Work work{};
  static_cast<LinearParams&>(work) = params;
  setNorm(work, params);
  work.feature_tiles = ceilDiv(params.N, kTileFeatures);
  work.per_y_scale = params.y_e4m3 ? 1.f / params.y_scale : 1.f;
  return work;
}

template <typename Operands>
cudaError_t launch(const LinearParams& params, cudaStream_t stream) {
  const auto kernel = linearMmaKernel<Operands>;
  if (Operands::kScaled) {
    const cudaError_t status = checkE4m3Code(reinterpret_cast<const void*>(kernel));
    if (status != cudaSuccess) return status;
  }
  const Work work = makeWork(params);
  const int64_t blocks = int64_t{work.feature_tiles} * ceilDiv(params.T, kTileTokens);
  return launchWithSharedMemory(kernel, gridSize(blocks), kThreads, kSharedBytes, stream, work);
}

}  // namespace

cudaError_t launchMmaKernel(const LinearParams& params, cudaStream_t stream) {
  const bool is_half = params.type == DataType::kFloat16;
  if (!is_half && params.type != DataType::kBFloat16) return cudaErrorInvalidValue;
  if (params.scale) {
    return (is_half ? launch<E4m3Operands<half>> : launch<E4m3Operands<__nv_bfloat16>>)(params, stream);
  }
  return (is_half ? launch<HalfOperands<half>> : launch<HalfOperands<__nv_bfloat16>>)(params, stream);
}

}  // namespace padfree
