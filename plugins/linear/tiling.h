// SPDX-License-Identifier: Apache-2.0
// How a GEMM is divided into tiles for the Hopper kernel.
#pragma once

#include "common/launch.h"
#include "linear/choice.h"
#include "linear/launch.h"

namespace padfree {

// A block computes kLinearFeatures features of `tokens` tokens at a time; blocks of a cluster take neighbouring tiles
// and fetch what they share once, or share a tile.
struct LinearTiling {
  int tokens;            // a multiple of 16, at most kMaxLinearTokens
  int cluster_features;  // tiles of features side by side in a cluster: 1, 2 or 4; each fetches at least 8 tokens
  int cluster_tokens;    // tiles of tokens: 1, 2 or 4
  int parts;             // of the reduction, each summed by its own block of the cluster: 1, 2 or 4; or kResident
};

// Instead of parts: blocks keep all of the reduction of their tokens' input in shared memory, and take
// kResidentFeatures at a time.
constexpr int kResident = 0;
inline bool isResident(const LinearTiling& tiling) {
  return tiling.parts == kResident;
}

constexpr int kLinearFeatures = 128;
constexpr int kResidentFeatures = 64;
constexpr int kMaxResidentDepth = 12;            // stages
constexpr int kSharedLimit = 227 * 1024 - 1024;  // minus barriers, and padding that aligns what follows them
constexpr int kMaxResidentOutBytes = 16 * 1024;  // from which results are stored
constexpr int kLinearDepth = 64;                 // of the reduction, that a block takes at a time: a stage
constexpr int kE4m3Depth = 128;                  // the same of e4m3
constexpr int kMaxLinearTokens = 256;
constexpr int kMaxClusterBlocks = 8;  // that every device runs as a cluster

inline int clusterBlocks(const LinearTiling& tiling) {
  return tiling.cluster_features * tiling.cluster_tokens * (isResident(tiling) ? 1 : tiling.parts);
}
inline int tileFeatures(const LinearTiling& tiling) {
  return isResident(tiling) ? kResidentFeatures : kLinearFeatures;
}
inline int stagesOf(const LinearParams& params) {
  return ceilDiv(params.K, params.scale ? kE4m3Depth : kLinearDepth);
}

// The most tokens of a GEMM with N > 0 features that the kernel's 32-bit numbers hold, however it is divided into
// tiles: tokens (a cluster's last tiles may be beyond T), blocks, and clusters times clusters along the features, where
// a product with a rounded inverse stands for a division.
constexpr int64_t maxLinearTokens(int64_t N) {
  constexpr int64_t kMinTileTokens = 16, kMaxClusterTokens = 4 * kMaxLinearTokens;
  const int64_t features = ceilDiv<int64_t>(N, kLinearFeatures);
  const int64_t in_grid = kMaxGridX / (kMaxClusterBlocks * features), in_products = 0xffffffff / (features * features);
  const int64_t tokens = (in_grid < in_products ? in_grid : in_products) * kMinTileTokens;
  return tokens < kMaxGridX - kMaxClusterTokens ? tokens : kMaxGridX - kMaxClusterTokens;
}

bool isLinearTiling(const LinearTiling& tiling);

// How many parts the reduction has with a tiling: a stage is not divided.
inline int partsOf(const LinearParams& params, const LinearTiling& tiling) {
  int parts = tiling.parts;
  while (parts > stagesOf(params)) parts /= 2;
  return parts;
}

// Whether there is a kernel with this tiling for this GEMM (linear/menu.h). With resident input: for GEMMs that
// nothing is added to, whose input is normed or whose features are gated or rotated, where shared memory has room for
// all of the reduction.
bool hasTiling(const LinearParams& params, const LinearTiling& tiling);

// How blocks with resident input divide a row of tiles, that of the same tokens: into `ranges` of at most `tiles`, of
// which a block takes up to `rounds` one after the other.
struct ResidentCut {
  int ranges, tiles, rounds;
};
ResidentCut residentCut(const LinearTiling& tiling, int T, int N, int multiprocessors);

// How many clusters run at once, at least one.
int linearClustersAtOnce(const LinearTiling& tiling, int multiprocessors);

// A tiling as an engine keeps it, and back.
LinearChoice choiceOf(const LinearTiling& tiling);
LinearTiling tilingOf(LinearChoice choice);

// As launchLinear, with this tiling.
cudaError_t launchLinear(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);

}  // namespace padfree
