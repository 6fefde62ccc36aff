// SPDX-License-Identifier: Apache-2.0
#include "linear/cost_model.h"

#include <algorithm>
#include <utility>

#include "common/integers.h"
#include "linear/mma/menu.h"

namespace padfree {
namespace {

// Fitted together to 18,838 tilings of linear layers at E 384, 768 and 1024, measured on an H200; all in cycles.
constexpr int kFetchBytesPerCycle = 34;     // from the L2 cache, for each multiprocessor when all of them fetch
constexpr int kMaxFetchBytesPerCycle = 84;  // to one multiprocessor
constexpr int kMinStageCycles = 230;        // the least that a stage costs the threads that fetch
constexpr int kClusterCycles = 600;         // of a cluster of more than two blocks
constexpr int kTileCycles = 2500;
constexpr int kTokenCycles = 11;           // of a tile's epilogue
constexpr int kResidentTileCycles = 1000;  // how long one tile's epilogue holds up another's main loop
constexpr int kGatherCycles = 1800;
constexpr int kGatherTokenCycles = 39;  // of blocks that share a tile: for each token that another block stores

constexpr size_t kCandidates = 5;
constexpr int kFewWaves = 4;  // of more the last counts little

// Clusters side by side along the features.
int featureClusters(const LinearTiling& tiling, int N) {
  return ceilDiv(N, kLinearFeatures * tiling.cluster_features);
}

// Clusters of all tiles.
int64_t clustersOf(const LinearTiling& tiling, int T, int N) {
  return int64_t{featureClusters(tiling, N)} * ceilDiv(T, tiling.tokens * tiling.cluster_tokens);
}

// A tile's epilogue, and what else it takes beside its main loop.
int epilogueCyclesOf(const LinearTiling& tiling) {
  return tiling.tokens * kTokenCycles + kTileCycles;
}

int64_t residentCyclesOf(const LinearTiling& tiling, int T, const LinearParams& params, int multiprocessors) {
  const ResidentCut cut = residentCut(tiling, T, params.N, multiprocessors);
  const int stages = stagesOf(params);
  const int tile = stages * 2 * tiling.tokens + kResidentTileCycles;
  const int input = stages * tiling.tokens * 128 / tiling.cluster_features / kFetchBytesPerCycle;
  // Half of the input arrives during the first matrix instructions.
  return int64_t{cut.rounds} * (cut.tiles * tile + input / 2) + epilogueCyclesOf(tiling);
}

// `loads`: whether its bytes may hold up a stage.
int64_t cyclesOf(const LinearTiling& tiling, int T, const LinearParams& params, int multiprocessors,
                 bool loads = true) {
  if (isResident(tiling)) return residentCyclesOf(tiling, T, params, multiprocessors);
  const int N = params.N;
  const int64_t clusters = std::max<int64_t>(clustersOf(tiling, T, N), 1);
  const int64_t at_once = std::min<int64_t>(clusters, linearClustersAtOnce(tiling, multiprocessors));
  const int share = static_cast<int>(kFetchBytesPerCycle * multiprocessors / (at_once * clusterBlocks(tiling)));
  const int multiply = 4 * tiling.tokens;  // cycles of a stage
  const int bytes = kLinearFeatures * 128 / tiling.cluster_tokens + tiling.tokens * 128 / tiling.cluster_features;
  const int load = loads ? bytes / std::min(share, kMaxFetchBytesPerCycle) : 0;
  const int stage = std::max({multiply, load, kMinStageCycles});
  const int stages = ceilDiv(stagesOf(params), tiling.parts);
  const int gather =
      tiling.parts > 1 ? kGatherCycles + kGatherTokenCycles * (tiling.tokens - tiling.tokens / tiling.parts) : 0;
  const int cluster = clusterBlocks(tiling) > 2 ? kClusterCycles : 0;
  return linearWaves(tiling, T, N, multiprocessors) * int64_t{stages * stage + epilogueCyclesOf(tiling) + gather} +
         cluster;
}

using Cost = std::pair<int64_t, LinearTiling>;  // in cycles

bool isCheaper(const Cost& a, const Cost& b) {
  return a.first < b.first;
}

// The costs of all tilings that exist for these operands.
std::vector<Cost> costsOf(const LinearParams& params, int T, int multiprocessors) {
  std::vector<Cost> costs;
  for (const LinearTiling& tiling : linearTilings()) {
    if (!hasTiling(params, tiling)) continue;
    costs.emplace_back(cyclesOf(tiling, T, params, multiprocessors), tiling);
  }
  return costs;
}

}  // namespace

int linearWaves(const LinearTiling& tiling, int T, int N, int multiprocessors) {
  if (isResident(tiling)) {
    const ResidentCut cut = residentCut(tiling, T, N, multiprocessors);
    return cut.rounds * cut.tiles;
  }
  return static_cast<int>(ceilDiv(clustersOf(tiling, T, N), int64_t{linearClustersAtOnce(tiling, multiprocessors)}));
}

int linearTokens(const LinearTiling& tiling, int waves, int N, int multiprocessors) {
  if (isResident(tiling)) {
    const int step = tiling.tokens * tiling.cluster_tokens;
    int T = step;
    while (linearWaves(tiling, T + step, N, multiprocessors) <= waves) T += step;
    return T;
  }
  const int64_t clusters = int64_t{waves} * linearClustersAtOnce(tiling, multiprocessors);
  return static_cast<int>(clusters / featureClusters(tiling, N) * tiling.tokens * tiling.cluster_tokens);
}

LinearTiling cheapestLinearTiling(const LinearParams& params, int multiprocessors) {
  const std::vector<Cost> costs = costsOf(params, params.T, multiprocessors);
  return std::min_element(costs.begin(), costs.end(), isCheaper)->second;
}

std::vector<LinearTiling> rankLinearTilings(const LinearParams& params, int T, int multiprocessors) {
  std::vector<Cost> costs = costsOf(params, T, multiprocessors);
  std::stable_sort(costs.begin(), costs.end(), isCheaper);
  std::vector<LinearTiling> tilings;
  for (const auto& [cycles, tiling] : costs) tilings.push_back(tiling);
  return tilings;
}

std::vector<LinearChoice> rankLinearChoices(const LinearParams& params, int T, const LinearDevice& device) {
  std::vector<LinearChoice> choices;
  if (device.is_hopper) {
    for (const LinearTiling& tiling : rankLinearTilings(params, T, device.multiprocessors)) {
      choices.push_back(choiceOf(tiling));
    }
  } else {
    for (const MmaTiling& tiling : rankMmaTilings(params, T, device)) choices.push_back(choiceOfMma(tiling));
  }
  return choices;
}

std::vector<LinearChoice> linearCandidates(const LinearParams& params, int T, const LinearDevice& device) {
  std::vector<LinearChoice> choices = rankLinearChoices(params, T, device);
  size_t count = 0;  // without what is measured beside them
  const auto isBeyond = [&](LinearChoice choice) {
    if (!isMeasuredMma(mmaTilingOf(choice))) ++count;
    return count > kCandidates;
  };
  choices.erase(std::find_if(choices.begin(), choices.end(), isBeyond), choices.end());
  if (!device.is_hopper || !isHot(T)) return choices;
  const std::vector<LinearTiling> tilings = rankLinearTilings(params, T, device.multiprocessors);
  const auto cycles = [&](const LinearTiling& tiling) {
    return cyclesOf(tiling, T, params, device.multiprocessors, false);
  };
  const LinearChoice coolest =
      choiceOf(*std::min_element(tilings.begin(), tilings.end(),
                                 [&](const LinearTiling& a, const LinearTiling& b) { return cycles(a) < cycles(b); }));
  if (std::find(choices.begin(), choices.end(), coolest) == choices.end()) choices.push_back(coolest);
  return choices;
}

int64_t tokensOfSameTime(LinearChoice choice, int T, int N, const LinearDevice& device) {
  if (!device.is_hopper) return mmaTokensOfSameTime(mmaTilingOf(choice), T, N, device);
  const LinearTiling tiling = tilingOf(choice);
  const int waves = linearWaves(tiling, T, N, device.multiprocessors), tokens = tiling.tokens * tiling.cluster_tokens;
  const bool fills_tiles = waves == 1 || (isHot(T) && waves <= kFewWaves);
  return fills_tiles ? int64_t{ceilDiv(T, tokens)} * tokens : linearTokens(tiling, waves, N, device.multiprocessors);
}

}  // namespace padfree
