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

template <typename Operands, typename Tile, MmaEpilogueKind kKind>
__device__ void computeMmaTile(const MmaWork& work) {
  extern __shared__ __align__(128) unsigned char shared[];
  float2* const scales = reinterpret_cast<float2*>(shared + Tile::kScaleOffset);
  const int2 tile = mmaTileOf(static_cast<int>(blockIdx.x), work);
  const int token = tile.x * Tile::kTokens, feature = tile.y * Tile::kFeatures;
  const auto warp = MmaWarp<Tile>::ofThread();

  waitForPriorGrids();
  releaseNextGrid();
  MmaSums<Tile> sums = {};
  addMmaProducts<Operands, Tile>(sums, work, warp, token, feature, shared, [&] {
    if (!work.moments_in) return;
    for (int row = threadIdx.x; row < Tile::kTokens; row += Tile::kThreads) {
      scales[row] = token + row < work.T ? scaleOfRow(work.moments_in + token + row, work) : float2{0.f, 0.f};
    }
  });
  __syncthreads();  // sums take the place of the stages
  MmaEpilogue<Operands, Tile, kKind>(work, warp, scales, shared, token, feature).run(sums);
}

template <typename Operands, typename Tile, MmaEpilogueKind kKind>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) linearMmaKernel(const __grid_constant__ MmaWork work) {
  if constexpr (hasMmaProducts<Operands>()) computeMmaTile<Operands, Tile, kKind>(work);
}

template <typename Operands, typename Tile, MmaEpilogueKind kKind>
cudaError_t launchMmaTile(const LinearParams& params, cudaStream_t stream) {
  const auto kernel = linearMmaKernel<Operands, Tile, kKind>;
  if (Operands::kScaled) {
    const cudaError_t status = checkE4m3Code(reinterpret_cast<const void*>(kernel));
    if (status != cudaSuccess) return status;
  }
  const MmaWork work = makeMmaWork(params, Tile::kTokens, Tile::kFeatures);
  const int64_t blocks = int64_t{work.token_tiles} * work.feature_tiles;
  return launchWithSharedMemory(kernel, gridSize(blocks), Tile::kThreads, Tile::kSharedBytes, stream, work);
}

template <typename Operands, typename Tile>
cudaError_t launchMmaTile(const LinearParams& params, cudaStream_t stream) {
  switch (mmaEpilogueKindOf(params)) {
    case MmaEpilogueKind::kPlain:
      return launchMmaTile<Operands, Tile, MmaEpilogueKind::kPlain>(params, stream);
    case MmaEpilogueKind::kAdded:
      return launchMmaTile<Operands, Tile, MmaEpilogueKind::kAdded>(params, stream);
    case MmaEpilogueKind::kPairs:
      return launchMmaTile<Operands, Tile, MmaEpilogueKind::kPairs>(params, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename Operands, int... kIndices>
cudaError_t launchMma(const LinearParams& params, int shape, cudaStream_t stream,
                      std::integer_sequence<int, kIndices...>) {
  cudaError_t status = cudaErrorInvalidValue;
  ((shape == kIndices ? void(status = launchMmaTile<Operands, MmaTile<kIndices>>(params, stream)) : void()), ...);
  return status;
}

// With the shape of this number.
template <typename Operands>
cudaError_t launchMma(const LinearParams& params, int shape, cudaStream_t stream) {
  return launchMma<Operands>(params, shape, stream, std::make_integer_sequence<int, kMmaShapeCount>());
}

}  // namespace padfree
