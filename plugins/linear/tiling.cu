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
        if (clusterBlocks(tiling) > kMaxClusterBlocks || tokens % (8 * features) != 0) continue;
        tilings.push_back(tiling);
        if (parts == 1 && isAlternatingTile(tokens)) {
          tilings.push_back({tokens, features, cluster_tokens, parts, true});
        }
      }
    }
  }
  return tilings;
}

// Whether kernels that alternate finish such a product: QKV, up or the last ones of a layer with folded norms.
bool alternatesAt(const LinearParams& p) {
  if (p.gated || p.rotary_features > 0) return false;
  if (p.residual_moments) return p.moments && p.y && p.y_e4m3;
  if (!p.x_moments || p.residual || p.moments) return false;
  return p.activation == Activation::kNone ? p.y && !p.y_e4m3 : p.activation == Activation::kGelu && p.y_e4m3 && !p.y;
}

}  // namespace

const std::vector<LinearTiling>& linearTilings() {
  static const std::vector<LinearTiling> tilings = makeTilings();
  return tilings;
}

bool isLinearTiling(const LinearTiling& tiling) {
  const auto equals = [&](const LinearTiling& other) {
    return tiling.tokens == other.tokens && tiling.cluster_features == other.cluster_features &&
           tiling.cluster_tokens == other.cluster_tokens && tiling.parts == other.parts &&
           tiling.alternates == other.alternates;
  };
  return std::any_of(linearTilings().begin(), linearTilings().end(), equals);
}

bool hasLinearKernel(const LinearParams& params, const LinearTiling& tiling, int T) {
  constexpr int kMostShared = 128;  // tokens
  if (!isLinearTiling(tiling) || T > mostLinearTokens(params.N, tileFeatures(tiling))) return false;
  if (!params.scale) return !tiling.alternates;
  if (tiling.alternates) return alternatesAt(params);
  return isE4m3Tile(tiling.tokens) && (tiling.parts == 1 || tiling.tokens <= kMostShared);
}

// Clusters of more than two blocks leave part of a GPC unused: of 132 multiprocessors, 30 clusters of 4 find room, 15
// of 8.
int linearClustersAtOnce(const LinearTiling& tiling, int multiprocessors) {
  const int usable = clusterBlocks(tiling) > 2 ? multiprocessors * 10 / 11 : multiprocessors;
  return std::max(usable / clusterBlocks(tiling), 1);
}

LinearChoice choiceOf(const LinearTiling& tiling) {
  return tiling.tokens | tiling.cluster_features << 16 | tiling.cluster_tokens << 20 | tiling.parts << 24 |
         tiling.alternates << 28;
}

LinearTiling tilingOf(LinearChoice choice) {
  return {choice & 0xffff, choice >> 16 & 0xf, choice >> 20 & 0xf, choice >> 24 & 0xf, (choice >> 28 & 1) != 0};
}

bool isLinearChoice(LinearChoice choice) {
  const LinearTiling tiling = tilingOf(choice);
  return choice == kLinearAuto || (choice == choiceOf(tiling) && isLinearTiling(tiling));
}

}  // namespace padfree
