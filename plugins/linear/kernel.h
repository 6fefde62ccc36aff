// SPDX-License-Identifier: Apache-2.0
// The kernel behind launchLinear and how a product is cut up for it.
#pragma once

#include <vector>

#include "linear/launch.h"

namespace padfree {

// A block computes kLinearFeatures features of `tokens` tokens at a time; blocks of a cluster take neighbouring tiles
// and fetch what they share once, or share a tile.
struct LinearTile {
  int tokens;            // a multiple of 16, at most kMaxLinearTokens
  int cluster_features;  // tiles of features side by side in a cluster: 1, 2 or 4; each fetches at least 8 tokens
  int cluster_tokens;    // tiles of tokens: 1, 2 or 4
  int parts;             // of the reduction, each summed by its own block of the cluster: 1, 2 or 4
};

constexpr int kLinearFeatures = 128;
constexpr int kMaxLinearTokens = 256;
constexpr int kMaxClusterBlocks = 8;  // that every device runs as a cluster
constexpr int kMaxMomentGroups = 16;  // of rows that are normed: widths up to 1024

// The cuts that can compute a product, the fastest first by the cost model, for T tokens on this many multiprocessors.
std::vector<LinearTile> rankLinearTiles(const LinearParams& params, int T, int multiprocessors);

bool isLinearTile(const LinearTile& tile);

inline int clusterBlocks(const LinearTile& tile) {
  return tile.cluster_features * tile.cluster_tokens * tile.parts;
}

// How many clusters run at once, at least one.
int linearClustersAtOnce(const LinearTile& tile, int multiprocessors);

// How often the clusters of a cut fill the multiprocessors, and the most tokens that so many waves compute: what lies
// between takes as long, but for the waves' own traffic.
int linearWaves(const LinearTile& tile, int T, int N, int multiprocessors);
int linearTokens(const LinearTile& tile, int waves, int N, int multiprocessors);

cudaError_t launchLinearSm90(const LinearParams& params, const LinearTile& tile, cudaStream_t stream);

}  // namespace padfree
