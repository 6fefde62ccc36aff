// SPDX-License-Identifier: Apache-2.0
#include "linear/tiling.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace padfree {
namespace {

constexpr int kLeastResidentTokens = 128, kMostResidentTokens = 224;
constexpr int kLeastRing = 3;                   // stages of weights
constexpr int kMostResidentFeatures = 1 << 20;  // of a product

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
  for (const auto& [features, cluster_tokens] : {std::pair{2, 1}, {1, 2}, {1, 1}}) {
    for (int tokens = kMostResidentTokens; tokens >= kLeastResidentTokens; tokens -= 16) {
      tilings.push_back({tokens, features, cluster_tokens, kResident});
    }
  }
  return tilings;
}

// Whether one of the kernels with resident input finishes so (sm90/launch_resident.cuh).
bool isResidentKind(const LinearParams& p) {
  if (p.residual || p.moments) return false;
  if (p.rotary_features > 0) return true;
  if (p.gated) {
    if (p.scale && !p.y_e4m3) return false;
    return p.activation == Activation::kGelu || (p.scale && p.activation == Activation::kSilu);
  }
  if (!p.x_moments) return false;
  if (!p.scale) return p.activation == Activation::kNone || p.activation == Activation::kGelu;
  if (p.y && p.y_e4m3) return false;
  return p.activation == (p.y ? Activation::kNone : Activation::kGelu);
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

bool hasTiling(const LinearParams& params, const LinearTiling& tiling) {
  if (!isResident(tiling)) return !params.scale || isE4m3Tiling(tiling);
  constexpr int kRowBytes = 128;  // of a stage
  const int depth = stagesOf(params);
  if (!isLinearTiling(tiling) || depth > kMaxResidentDepth || !isResidentKind(params)) return false;
  if (params.N > kMostResidentFeatures || ceilDiv(params.N, kResidentFeatures) < tiling.cluster_features) return false;
  const int input = depth * tiling.tokens * kRowBytes, scales = tiling.tokens * sizeof(float2);
  return input + scales + kMaxResidentOutBytes + kLeastRing * kResidentFeatures * kRowBytes <= kSharedLimit;
}

ResidentCut residentCut(const LinearTiling& tiling, int T, int N, int multiprocessors) {
  const int tiles = ceilDiv(N, kResidentFeatures), at_once = linearClustersAtOnce(tiling, multiprocessors);
  const int64_t rows = std::max(ceilDiv(T, tiling.tokens * tiling.cluster_tokens), 1);
  ResidentCut best{};
  int64_t least = std::numeric_limits<int64_t>::max();
  const int most = std::min(tiles, 2 * multiprocessors);  // more would not fill them better
  for (int ranges = tiling.cluster_features; ranges <= most; ranges += tiling.cluster_features) {
    const int of_range = ceilDiv(tiles, ranges);
    const int64_t rounds = ceilDiv<int64_t>(rows * (ranges / tiling.cluster_features), at_once);
    const int64_t cost = rounds * (2 * of_range + 1);  // half a tile's time until the first input has come
    if (cost >= least) continue;
    least = cost;
    best = {ranges, of_range, static_cast<int>(rounds)};
  }
  return best;
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
