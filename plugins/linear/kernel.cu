// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "common/launch.h"
#include "linear/kernel.h"

namespace padfree {
namespace {

// Measured on an H200 (docs/linear.md, "Clusters of four and eight"); all in cycles, fitted together.
constexpr int kStageDepth = 64;
constexpr int kFetchBytesPerCycle = 34;      // from the L2 cache, for each multiprocessor when all of them fetch
constexpr int kMostFetchBytesPerCycle = 84;  // to one multiprocessor
constexpr int kMinStageCycles = 230;         // what a stage costs the threads that fetch
constexpr int kClusterCycles = 600;          // of a cluster of more than two blocks
constexpr int kTileCycles = 2500;
constexpr int kTokenCycles = 11;  // of finishing a tile
constexpr int kGatherCycles = 1800;
constexpr int kGatherTokenCycles = 39;  // of blocks that share a tile: for each token that another block finishes

// Clusters side by side along the features.
int featureClusters(const LinearTile& tile, int N) {
  return ceilDiv(N, kLinearFeatures * tile.cluster_features);
}

// Every cut that the kernel is compiled for.
std::vector<LinearTile> makeTiles() {
  std::vector<LinearTile> tiles;
  for (const int parts : {1, 2, 4}) {
    for (const auto& [features, cluster_tokens] :
         {std::pair{2, 1}, {1, 2}, {1, 1}, {2, 2}, {1, 4}, {4, 1}, {2, 4}, {4, 2}}) {
      for (int tokens = kMaxLinearTokens; tokens > 0; tokens -= 16) {
        const LinearTile tile{tokens, features, cluster_tokens, parts};
        if (clusterBlocks(tile) <= kMaxClusterBlocks && tokens % (8 * features) == 0) tiles.push_back(tile);
      }
    }
  }
  return tiles;
}

const std::vector<LinearTile>& allTiles() {
  static const std::vector<LinearTile> tiles = makeTiles();
  return tiles;
}

// Clusters of all tiles.
int64_t clustersOf(const LinearTile& tile, int T, int N) {
  return int64_t{featureClusters(tile, N)} * ceilDiv(T, tile.tokens * tile.cluster_tokens);
}

int64_t cyclesOf(const LinearTile& tile, int T, int K, int N, int multiprocessors) {
  const int64_t clusters = std::max<int64_t>(clustersOf(tile, T, N), 1);
  const int64_t at_once = std::min<int64_t>(clusters, linearClustersAtOnce(tile, multiprocessors));
  const int share = static_cast<int>(kFetchBytesPerCycle * multiprocessors / (at_once * clusterBlocks(tile)));
  const int multiply = 4 * tile.tokens;  // cycles of a stage
  const int bytes = kLinearFeatures * 128 / tile.cluster_tokens + tile.tokens * 128 / tile.cluster_features;
  const int stage = std::max({multiply, bytes / std::min(share, kMostFetchBytesPerCycle), kMinStageCycles});
  const int stages = ceilDiv(ceilDiv(K, kStageDepth), tile.parts);
  const int gather = tile.parts > 1 ? kGatherCycles + kGatherTokenCycles * (tile.tokens - tile.tokens / tile.parts) : 0;
  const int finish = tile.tokens * kTokenCycles + kTileCycles;
  const int cluster = clusterBlocks(tile) > 2 ? kClusterCycles : 0;
  return linearWaves(tile, T, N, multiprocessors) * int64_t{stages * stage + finish + gather} + cluster;
}

using Cost = std::pair<int64_t, LinearTile>;  // in cycles

bool isCheaper(const Cost& a, const Cost& b) {
  return a.first < b.first;
}

// Of every cut that can compute a product.
std::vector<Cost> costsOf(const LinearParams& params, int T, int multiprocessors) {
  std::vector<Cost> costs;
  for (const LinearTile& tile : allTiles()) {
    costs.emplace_back(cyclesOf(tile, T, params.K, params.N, multiprocessors), tile);
  }
  return costs;
}

}  // namespace

// Clusters of more than two blocks leave part of a GPC unused: of 132 multiprocessors, 30 clusters of 4 find room, 15
// of 8.
int linearClustersAtOnce(const LinearTile& tile, int multiprocessors) {
  const int usable = clusterBlocks(tile) > 2 ? multiprocessors * 10 / 11 : multiprocessors;
  return std::max(usable / clusterBlocks(tile), 1);
}

bool isLinearTile(const LinearTile& tile) {
  const auto equals = [&](const LinearTile& other) {
    return tile.tokens == other.tokens && tile.cluster_features == other.cluster_features &&
           tile.cluster_tokens == other.cluster_tokens && tile.parts == other.parts;
  };
  return std::any_of(allTiles().begin(), allTiles().end(), equals);
}

int linearWaves(const LinearTile& tile, int T, int N, int multiprocessors) {
  return static_cast<int>(ceilDiv(clustersOf(tile, T, N), int64_t{linearClustersAtOnce(tile, multiprocessors)}));
}

int linearTokens(const LinearTile& tile, int waves, int N, int multiprocessors) {
  const int64_t clusters = int64_t{waves} * linearClustersAtOnce(tile, multiprocessors);
  return static_cast<int>(clusters / featureClusters(tile, N) * tile.tokens * tile.cluster_tokens);
}

std::vector<LinearTile> rankLinearTiles(const LinearParams& params, int T, int multiprocessors) {
  std::vector<Cost> costs = costsOf(params, T, multiprocessors);
  std::stable_sort(costs.begin(), costs.end(), isCheaper);
  std::vector<LinearTile> tiles;
  for (const auto& [cycles, tile] : costs) tiles.push_back(tile);
  return tiles;
}

cudaError_t launchLinear(const LinearParams& params, cudaStream_t stream) {
  int multiprocessors = 0, major = 0;
  cudaError_t status = countMultiprocessors(multiprocessors);
  if (status == cudaSuccess) status = majorCapability(major);
  if (status != cudaSuccess) return status;
  if (major != 9) return cudaErrorNoKernelImageForDevice;
  const std::vector<Cost> costs = costsOf(params, params.T, multiprocessors);
  return launchLinearSm90(params, std::min_element(costs.begin(), costs.end(), isCheaper)->second, stream);
}

#ifndef PADFREE_ARCH_90
cudaError_t launchLinearSm90(const LinearParams&, const LinearTile&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
#endif

}  // namespace padfree
