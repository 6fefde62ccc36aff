// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

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
int clustersAtOnce(const LinearTile& tile, int multiprocessors) {
  const int blocks = tile.cluster_features * tile.cluster_tokens * tile.parts;
  const int usable = blocks > 2 ? multiprocessors * 10 / 11 : multiprocessors;
  return std::max(usable / blocks, 1);
}

// Clusters side by side along the features.
int featureClusters(const LinearTile& tile, int N) {
  return ceilDiv(N, kLinearFeatures * tile.cluster_features);
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
  const int multiply = 4 * tile.tokens;  // cycles of a stage
  const int bytes = kLinearFeatures * 128 / tile.cluster_tokens + tile.tokens * 128 / tile.cluster_features;
  const int stage = std::max({multiply, bytes / kFetchBytesPerCycle, kMinStageCycles});
  const int stages = ceilDiv(ceilDiv(K, kStageDepth), tile.parts);
  const int gather = tile.parts > 1 ? kGatherCycles + kGatherTokenCycles * (tile.tokens - tile.tokens / tile.parts) : 0;
  const int finish = tile.tokens * kTokenCycles + kTileCycles;
  return linearWaves(tile, T, N, multiprocessors) * int64_t{stages * stage + finish + gather} + kGridCycles;
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

bool isLinearTile(const LinearTile& tile) {
  const auto equals = [&](const LinearTile& other) {
    return tile.tokens == other.tokens && tile.cluster_features == other.cluster_features &&
           tile.cluster_tokens == other.cluster_tokens && tile.parts == other.parts;
  };
  const std::vector<LinearTile> tiles = allTiles();
  return std::any_of(tiles.begin(), tiles.end(), equals);
}

int linearWaves(const LinearTile& tile, int T, int N, int multiprocessors) {
  const int64_t clusters = int64_t{featureClusters(tile, N)} * ceilDiv(T, tile.tokens * tile.cluster_tokens);
  return static_cast<int>(ceilDiv(clusters, int64_t{clustersAtOnce(tile, multiprocessors)}));
}

int linearTokens(const LinearTile& tile, int waves, int N, int multiprocessors) {
  const int64_t clusters = int64_t{waves} * clustersAtOnce(tile, multiprocessors);
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
