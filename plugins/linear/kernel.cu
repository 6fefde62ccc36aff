// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/launch.h"
#include "linear/kernel.h"

namespace padfree {
namespace {

constexpr int kStageDepth = 64;
constexpr int kFetchBytesPerCycle = 48;  // from the L2 cache to a multiprocessor, all of them fetching
constexpr int kMinStageCycles = 180;     // what a stage costs the threads that fetch
constexpr int kTileCycles = 2600;        // first fetch and last write
constexpr int kTokenCycles = 8;          // of finishing a tile
constexpr int kGatherCycles = 1500;      // of blocks that share a tile

// Every cut that the kernel is compiled for.
std::vector<LinearTile> allTiles() {
  std::vector<LinearTile> tiles;
  for (const int parts : {1, 2, 4}) {
    for (const LinearTile& cluster : {LinearTile{0, 2, 1, 0}, {0, 1, 2, 0}, {0, 1, 1, 0}}) {
      for (int tokens = kMaxLinearTokens; tokens > 0; tokens -= 16) {
        tiles.push_back({tokens, cluster.cluster_features, cluster.cluster_tokens, parts});
      }
    }
  }
  return tiles;
}

int64_t cyclesOf(const LinearTile& tile, int T, int K, int N, int multiprocessors) {
  const int64_t clusters =
      int64_t{ceilDiv(N, kLinearFeatures * tile.cluster_features)} * ceilDiv(T, tile.tokens * tile.cluster_tokens);
  const int at_once = std::max(multiprocessors / (tile.cluster_features * tile.cluster_tokens * tile.parts), 1);
  const int multiply = 4 * tile.tokens;  // cycles of a stage
  const int bytes = kLinearFeatures * 128 / tile.cluster_tokens + tile.tokens * 128 / tile.cluster_features;
  const int stage = std::max({multiply, bytes / kFetchBytesPerCycle, kMinStageCycles});
  const int stages = ceilDiv(ceilDiv(K, kStageDepth), tile.parts);
  const int gather = tile.parts > 1 ? kGatherCycles : 0;
  return ceilDiv(clusters, int64_t{at_once}) * (stages * stage + tile.tokens * kTokenCycles + gather) + kTileCycles;
}

// Orders cuts by their cost.
auto cheaper(int T, int K, int N, int multiprocessors) {
  return [=](const LinearTile& a, const LinearTile& b) {
    return cyclesOf(a, T, K, N, multiprocessors) < cyclesOf(b, T, K, N, multiprocessors);
  };
}

}  // namespace

bool isLinearTile(const LinearTile& tile) {
  const auto equals = [&](const LinearTile& other) {
    return tile.tokens == other.tokens && tile.cluster_features == other.cluster_features &&
           tile.cluster_tokens == other.cluster_tokens && tile.parts == other.parts;
  };
  const std::vector<LinearTile> tiles = allTiles();
  return std::any_of(tiles.begin(), tiles.end(), equals);
}

std::vector<LinearTile> rankLinearTiles(int T, int K, int N, int multiprocessors) {
  std::vector<LinearTile> tiles = allTiles();
  std::stable_sort(tiles.begin(), tiles.end(), cheaper(T, K, N, multiprocessors));
  return tiles;
}

cudaError_t launchLinear(const LinearParams& params, cudaStream_t stream) {
  int device = 0, multiprocessors = 0, major = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (status != cudaSuccess) return status;
  if (major != 9) return cudaErrorNoKernelImageForDevice;
  const std::vector<LinearTile> tiles = allTiles();
  const auto best =
      std::min_element(tiles.begin(), tiles.end(), cheaper(params.T, params.K, params.N, multiprocessors));
  return launchLinearSm90(params, *best, stream);
}

#ifndef PADFREE_ARCH_90
cudaError_t launchLinearSm90(const LinearParams&, const LinearTile&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
#endif

}  // namespace padfree
