// SPDX-License-Identifier: Apache-2.0
// How a product is divided into tiles for the Hopper kernel.
#pragma once

#include <vector>

#include "linear/choice.h"
#include "linear/launch.h"

namespace padfree {

// A block computes kLinearFeatures features of `tokens` tokens at a time; blocks of a cluster take neighbouring tiles
// and fetch what they share once, or share a tile.
struct LinearTiling {
  int tokens;            // a multiple of 16, at most kMaxLinearTokens
  int cluster_features;  // tiles of features side by side in a cluster: 1, 2 or 4; each fetches at least 8 tokens
  int cluster_tokens;    // tiles of tokens: 1, 2 or 4
  int parts;             // of the reduction, each summed by its own block of the cluster: 1, 2 or 4
};

constexpr int kLinearFeatures = 128;
constexpr int kLinearDepth = 64;  // of the reduction, that a block takes at a time: a stage
constexpr int kMaxLinearTokens = 256;
constexpr int kMaxClusterBlocks = 8;  // that every device runs as a cluster

inline int clusterBlocks(const LinearTiling& tiling) {
  return tiling.cluster_features * tiling.cluster_tokens * tiling.parts;
}

// All tilings that the kernel is compiled for.
const std::vector<LinearTiling>& linearTilings();

bool isLinearTiling(const LinearTiling& tiling);

// How many clusters run at once, at least one.
int linearClustersAtOnce(const LinearTiling& tiling, int multiprocessors);

// A tiling as an engine keeps it, and back.
LinearChoice choiceOf(const LinearTiling& tiling);
LinearTiling tilingOf(LinearChoice choice);

// As launchLinear, with this tiling.
cudaError_t launchLinear(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);

}  // namespace padfree
