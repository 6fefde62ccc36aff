// SPDX-License-Identifier: Apache-2.0
#include "linear/tiling.h"

#include <algorithm>
#include <utility>

namespace padfree {
namespace {

std::vector<LinearTiling> makeTilings() {
  std::vector<LinearTiling> tilings;
  for (const int parts : {1, 2, 4}) {
    for (const auto& [features, cluster_tokens] :
         {std::pair{2, 1}, {1, 2}, {1, 1}, {2, 2}, {1, 4}, {4, 1}, {2, 4}, {4, 2}}) {
      for (int tokens = kMaxLinearTokens; tokens > 0; tokens -= 16) {
        const LinearTiling tiling{tokens, features, cluster_tokens, parts};
        if (clusterBlocks(tiling) <= kMaxClusterBlocks && tokens % (8 * features) == 0) tilings.push_back(tiling);
      }
    }
  }
  return tilings;
}

}  // namespace

const std::vector<LinearTiling>& linearTilings() {
  static const std::vector<LinearTiling> tilings = makeTilings();
  return tilings;
}

bool isLinearTiling(const LinearTiling& tiling) {
  const auto equals = [&](const LinearTiling& other) {
    return tiling.tokens == other.tokens && tiling.cluster_features == other.cluster_features &&
           tiling.cluster_tokens == other.cluster_tokens && tiling.parts == other.parts;
  };
  return std::any_of(linearTilings().begin(), linearTilings().end(), equals);
}

bool isE4m3Tiling(const LinearTiling& tiling) {
  constexpr int kMostShared = 128;  // tokens
  if (tiling.parts > 1 && tiling.tokens > kMostShared) return false;
  return isLinearTiling(tiling) && isE4m3Tile(tiling.tokens);
}

// Clusters of more than two blocks leave part of a GPC unused: of 132 multiprocessors, 30 clusters of 4 find room, 15
// of 8.
int linearClustersAtOnce(const LinearTiling& tiling, int multiprocessors) {
  const int usable = clusterBlocks(tiling) > 2 ? multiprocessors * 10 / 11 : multiprocessors;
  return std::max(usable / clusterBlocks(tiling), 1);
}

LinearChoice choiceOf(const LinearTiling& tiling) {
  return tiling.tokens | tiling.cluster_features << 16 | tiling.cluster_tokens << 20 | tiling.parts << 24;
}

LinearTiling tilingOf(LinearChoice choice) {
  return {choice & 0xffff, choice >> 16 & 0xf, choice >> 20 & 0xf, choice >> 24 & 0xf};
}

bool isLinearChoice(LinearChoice choice) {
  const LinearTiling tiling = tilingOf(choice);
  return choice == kLinearAuto || (choice == choiceOf(tiling) && isLinearTiling(tiling));
}

}  // namespace padfree
