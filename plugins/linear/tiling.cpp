// SPDX-License-Identifier: Apache-2.0
#include "linear/tiling.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "linear/cost_model.h"
#include "linear/menu.h"
#include "linear/mma/menu.h"

namespace padfree {
namespace {

constexpr int kMinResidentTokens = 128, kMaxResidentTokens = 224;
constexpr int kMinRingStages = 3;              // stages of weights
constexpr int kMaxResidentFeatures = 1 << 20;  // of a GEMM

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
    for (int tokens = kMaxResidentTokens; tokens >= kMinResidentTokens; tokens -= 16) {
      tilings.push_back({tokens, features, cluster_tokens, kResident});
    }
  }
  return tilings;
}

// Whether one of the kernels with resident input has this epilogue (sm90/launch_resident.cuh).
bool isResidentKind(const LinearParams& p) {
  if (p.residual || p.moments || p.head_scale) return false;
  if (p.rotary_features > 0) return true;
  if (p.gated) {
    return p.scale && p.y_e4m3 && (p.activation == Activation::kGelu || p.activation == Activation::kSilu);
  }
  if (!p.x_moments) return false;
  if (!p.scale) return p.activation == Activation::kNone || p.activation == Activation::kGelu;
  if (p.y && p.y_e4m3) return false;
  return p.activation == (p.y ? Activation::kNone : Activation::kGelu);
}

// Whether there is a kernel for this gate alone.
bool hasGate(const LinearParams& p) {
  if (p.scale && !p.y_e4m3) return false;
  if (p.activation == Activation::kGeluTanh) return !p.scale;
  return p.activation == Activation::kGelu || p.activation == Activation::kSilu;
}

// Whether a GEMM ends as those of layers whose norms are folded.
bool hasResidualAndMoments(const LinearParams& p, bool shares_tile) {
  if (!p.residual || p.x_moments || p.activation != Activation::kNone) return false;
  if (!p.scale) return p.moments || (!shares_tile && p.residual_moments);
  return !shares_tile && p.y && (p.moments ? p.y_e4m3 != nullptr : p.residual_moments && !p.y_e4m3);
}

// The kind for GEMMs in e4m3 to which nothing is added, with one type of results.
EpilogueKind epilogueKindOfE4m3(const LinearParams& p) {
  if (!p.y_e4m3) return p.activation == Activation::kNone ? EpilogueKind::kChunks : EpilogueKind::kActivated;
  return p.x_moments && p.activation == Activation::kGelu ? EpilogueKind::kChunks : EpilogueKind::kAnyChunks;
}

// Whether blocks may share the tiles of a GEMM.
bool mayShare(const LinearParams& p) {
  return p.activation == Activation::kNone && !p.gated && p.rotary_features == 0 && !p.x_moments;
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

EpilogueKind epilogueKindOf(const LinearParams& p, bool shares_tile) {
  if (p.rotary_features > 0) return p.head_scale ? EpilogueKind::kHeads : EpilogueKind::kPairs;
  if (p.gated) return hasGate(p) ? EpilogueKind::kPairs : EpilogueKind::kAnyPairs;
  if (hasResidualAndMoments(p, shares_tile)) return EpilogueKind::kInPlace;
  const bool has_activation = p.activation != Activation::kNone;
  if (p.residual || p.moments || (p.y && p.y_e4m3))
    return has_activation ? EpilogueKind::kActivated : EpilogueKind::kAnyInPlace;
  if (p.scale) return epilogueKindOfE4m3(p);
  if (p.activation == Activation::kSigmoid) return EpilogueKind::kActivated;
  return !has_activation || p.activation == Activation::kGelu ? EpilogueKind::kChunks : EpilogueKind::kAnyChunks;
}

bool hasTiling(const LinearParams& params, const LinearTiling& tiling) {
  if (!isLinearTiling(tiling)) return false;
  const bool e4m3 = params.scale != nullptr;
  if (params.wide_heads && (tiling.cluster_features % 2 != 0 || !hasWideHeads(tiling.tokens))) return false;
  if (!isResident(tiling)) {
    const bool shares = partsOf(params, tiling) > 1;
    const EpilogueKind kind = epilogueKindOf(params, shares);
    return shares ? mayShare(params) && hasSharedTile(kind, e4m3, tiling.tokens) : hasTile(kind, e4m3, tiling.tokens);
  }
  constexpr int kRowBytes = 128;  // of a stage
  const int depth = stagesOf(params);
  if (!hasResidentTile(e4m3, tiling.tokens) || depth > kMaxResidentDepth || !isResidentKind(params)) return false;
  if (params.N > kMaxResidentFeatures || ceilDiv(params.N, kResidentFeatures) < tiling.cluster_features) return false;
  const int input = depth * tiling.tokens * kRowBytes, scales = tiling.tokens * sizeof(float2);
  return input + scales + kMaxResidentOutBytes + kMinRingStages * kResidentFeatures * kRowBytes <= kSharedLimit;
}

ResidentCut residentCut(const LinearTiling& tiling, int T, int N, int multiprocessors) {
  const int tiles = ceilDiv(N, kResidentFeatures), at_once = linearClustersAtOnce(tiling, multiprocessors);
  const int64_t rows = std::max(ceilDiv(T, tiling.tokens * tiling.cluster_tokens), 1);
  ResidentCut best{};
  int64_t lowest_cost = std::numeric_limits<int64_t>::max();
  const int max_ranges = std::min(tiles, 2 * multiprocessors);  // more would not fill them better
  for (int ranges = tiling.cluster_features; ranges <= max_ranges; ranges += tiling.cluster_features) {
    const int of_range = ceilDiv(tiles, ranges);
    const int64_t rounds = ceilDiv<int64_t>(rows * (ranges / tiling.cluster_features), at_once);
    const int64_t cost = rounds * (2 * of_range + 1);  // half a tile's time until the first input has come
    if (cost >= lowest_cost) continue;
    lowest_cost = cost;
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
  return choice == kLinearAuto || mmaTilingOf(choice).shape >= 0 ||
         (choice == choiceOf(tiling) && isLinearTiling(tiling));
}

}  // namespace padfree
