// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/launch.h"
#include "linear/kernel.h"

namespace padfree {
namespace {

// Measured on an H200 (benchmarks/linear.py --tiles); all in cycles, most of them fitted together.
constexpr int kStageDepth = 64;
constexpr int kFetchBytesPerCycle = 38;  // from the L2 cache to a multiprocessor, all of them fetching
constexpr int kMinStageCycles = 300;     // what a stage costs the threads that fetch
constexpr int kGridCycles = 1100;        // first fetch and last write
constexpr int kTileCycles = 300;
constexpr int kTokenCycles = 26;  // of finishing a tile
constexpr int kGatherCycles = 1900;
constexpr int kGatherTokenCycles = 16;  // of blocks that share a tile: for each token that another block finishes

// How many clusters run at once. Those of more than two blocks leave part of a GPC unused: of 132 multiprocessors, 30
// clusters of 4 found room and 32 did not.
int clustersAtOnce(int blocks, int multiprocessors) {
  const int usable = blocks > 2 ? multiprocessors * 10 / 11 : multiprocessors;
  return std::max(usable / blocks, 1);
}

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
  const int at_once = clustersAtOnce(tile.cluster_features * tile.cluster_tokens * tile.parts, multiprocessors);
  const int multiply = 4 * tile.tokens;  // cycles of a stage
  const int bytes = kLinearFeatures * 128 / tile.cluster_tokens + tile.tokens * 128 / tile.cluster_features;
  const int stage = std::max({multiply, bytes / kFetchBytesPerCycle, kMinStageCycles});
  const int stages = ceilDiv(ceilDiv(K, kStageDepth), tile.parts);
  const int gather = tile.parts > 1 ? kGatherCycles + kGatherTokenCycles * (tile.tokens - tile.tokens / tile.parts) : 0;
  const int finish = tile.tokens * kTokenCycles + kTileCycles;
  return ceilDiv(clusters, int64_t{at_once}) * (stages * stage + finish + gather) + kGridCycles;
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
  int multiprocessors = 0, major = 0;
  cudaError_t status = countMultiprocessors(multiprocessors);
  if (status == cudaSuccess) status = majorCapability(major);
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
