// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "common/dependent_launch.cuh"
#include "linear/mma/epilogue.cuh"

namespace padfree {

constexpr int kMmaGroupTiles =
    8;  // tiles of tokens whose blocks are neighbours, so that they find weights in the cache

// The tile of a block: (token, feature), both counted in tiles.
__device__ inline int2 mmaTileOf(int block, const MmaWork& work) {
  const int of_group = kMmaGroupTiles * work.feature_tiles;
  const int first = block / of_group * kMmaGroupTiles, within = block % of_group;
  const int rows = min(work.token_tiles - first, kMmaGroupTiles);
  return {first + within % rows, within / rows};
}

// Whether a sum of any thread of the block is infinite or not a number.
template <typename Operands, typename Tile>
__device__ bool isBeyondFp16(const MmaSums<Operands, Tile>& sums) {
  float zero = 0.f;
#pragma unroll
  for (int i = 0; i < Tile::kTokenBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * Tile::kFeaturePairs; ++j) {
#pragma unroll
      for (const float sum : sums[i][j]) zero = fmaf(sum, 0.f, zero);
    }
  }
  return __syncthreads_or(zero != 0.f);
}

template <typename Operands, typename Tile, MmaEpilogueKind kKind, bool kShared>
__device__ void computeMmaTile(const MmaWork& work) {
  extern __shared__ __align__(128) unsigned char shared[];
  float2* const scales = reinterpret_cast<float2*>(shared);
  unsigned char* const stages = shared + Tile::kScaleBytes;
  const MmaPartsOf<Tile, kShared> parts(work, static_cast<int>(blockIdx.x));
  const int2 tile = mmaTileOf(parts.tile(), work);
  const int token = tile.x * Tile::kTokens, feature = tile.y * Tile::kFeatures;
  const auto warp = MmaWarp<Tile>::ofThread();

  using Parts = MmaPartsOf<Tile, kShared>;
  using Epilogue = MmaEpilogue<Operands, Tile, kKind, Parts>;
  Epilogue::prefetch(work, feature);
  waitForPriorGrids();
  releaseNextGrid();
  Epilogue epilogue(work, warp, parts, scales, stages, token, feature);
  MmaSums<Operands, Tile> sums = {};
  addMmaProducts<Operands, Tile>(sums, work, warp, token, feature, parts, stages, [&] {
    if constexpr (kShared) {
      if (!parts.isLast()) return;
    }
    epilogue.loadEarly();
    if (!work.moments_in) return;
    for (int row = threadIdx.x; row < Tile::kTokens; row += Tile::kThreads) {
      scales[row] = token + row < work.T ? scaleOfRow(work.moments_in + token + row, work) : float2{0.f, 0.f};
    }
  });
  if constexpr (Operands::kFp16Sums) {
    if (isBeyondFp16<Operands, Tile>(sums)) {
      using Exact = MmaHalf<typename Operands::Result>;
      MmaSums<Exact, Tile> exact = {};
      addMmaProducts<Exact, Tile>(exact, work, warp, token, feature, parts, stages, [] {});
      __syncthreads();
      return epilogue.run(exact);
    }
  }
  __syncthreads();  // sums take the place of the stages
  if constexpr (Parts::kOfRows) {
    if (!parts.isLast()) return epilogue.share(sums);
  } else if constexpr (kShared) {
    if (!parts.isLast()) return parts.share(sums);
    parts.gather(sums);
  }
  epilogue.run(sums);
}

template <typename Operands, typename Tile, MmaEpilogueKind kKind, bool kShared>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBound) linearMmaKernel(const __grid_constant__ MmaWork work) {
  if constexpr (hasMmaProducts<Operands>()) computeMmaTile<Operands, Tile, kKind, kShared>(work);
}

template <typename Operands, typename Tile, MmaEpilogueKind kKind, bool kShared>
cudaError_t launchMmaTile(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream) {
  const auto kernel = linearMmaKernel<Operands, Tile, kKind, kShared>;
  if (Operands::kE4m3) {
    const cudaError_t status = checkE4m3Code(reinterpret_cast<const void*>(kernel));
    if (status != cudaSuccess) return status;
  }
  LinearDevice device{};
  const cudaError_t status = linearDevice(device);
  if (status != cudaSuccess) return status;
  const MmaCut cut = mmaCutOf(tiling, params, params.T, device);
  MmaWork work = makeMmaWork(params, tiling, cut);
  const int64_t blocks = int64_t{work.token_tiles} * work.feature_tiles + cut.shared * (cut.parts - 1);
  work.stages = mmaStages(Tile::kShape, blocks, int64_t{params.K} * Operands::kElementBytes, device);
  const int shared_bytes = mmaSharedBytes(Tile::kShape, work.stages);
  return launchWithSharedMemory(kernel, gridSize(blocks), Tile::kThreads, shared_bytes, stream, work);
}

template <typename Operands, int kShape, MmaEpilogueKind kKind>
cudaError_t launchMmaShape(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream) {
  if constexpr (Operands::kFp16Sums) {
    if constexpr (hasMmaFp16Sums(kKind, kShape)) {
      return launchMmaTile<Operands, MmaTile<kShape>, kKind, false>(params, tiling, stream);
    }
    return cudaErrorInvalidValue;
  } else if constexpr (hasMmaShape(kKind, kShape, Operands::kInt8)) {
    if constexpr (maySplitMma(kKind, kShape) || mayBeMmaTail(kKind, kShape, Operands::kScaled)) {
      if (tiling.parts > 1) return launchMmaTile<Operands, MmaTile<kShape>, kKind, true>(params, tiling, stream);
    }
    return launchMmaTile<Operands, MmaTile<kShape>, kKind, false>(params, tiling, stream);
  } else {
    return cudaErrorInvalidValue;
  }
}

template <typename Operands, int kShape>
cudaError_t launchMmaShape(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream) {
  switch (mmaEpilogueKindOf(params)) {
    case MmaEpilogueKind::kPlain:
      return launchMmaShape<Operands, kShape, MmaEpilogueKind::kPlain>(params, tiling, stream);
    case MmaEpilogueKind::kGelu:
      return launchMmaShape<Operands, kShape, MmaEpilogueKind::kGelu>(params, tiling, stream);
    case MmaEpilogueKind::kInPlace:
      return launchMmaShape<Operands, kShape, MmaEpilogueKind::kInPlace>(params, tiling, stream);
    case MmaEpilogueKind::kAny:
      return launchMmaShape<Operands, kShape, MmaEpilogueKind::kAny>(params, tiling, stream);
    case MmaEpilogueKind::kPairs:
      return launchMmaShape<Operands, kShape, MmaEpilogueKind::kPairs>(params, tiling, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename Operands, int... kShapes>
cudaError_t launchMma(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream,
                      std::integer_sequence<int, kShapes...>) {
  cudaError_t status = cudaErrorInvalidValue;
  ((tiling.shape == kShapes ? void(status = launchMmaShape<Operands, kShapes>(params, tiling, stream)) : void()), ...);
  return status;
}

template <typename Operands>
cudaError_t launchMma(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream) {
  return launchMma<Operands>(params, tiling, stream, std::make_integer_sequence<int, kMmaShapeCount>());
}

}  // namespace padfree
