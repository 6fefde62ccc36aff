// SPDX-License-Identifier: Apache-2.0
// How the Hopper kernel cuts a product up: warpgroups, stages of shared memory, blocks of a cluster.
#pragma once

#include "common/device.cuh"
#include "linear/copy.cuh"
#include "linear/kernel.h"

namespace padfree {

constexpr int kGroups = 2;  // that multiply, each its own features
constexpr int kWarps = kWarpgroup / kWarpSize;
constexpr int kGroupFeatures = kLinearFeatures / kGroups;
static_assert(kGroupFeatures == kMomentFeatures);  // a warpgroup takes the moments of its features
constexpr int kLinearThreads = (1 + kGroups) * kWarpgroup;
constexpr int kDepth = 64;  // of the reduction, a stage: one panel's row
constexpr int kMaxStages = 10;
constexpr int kBoxTokens = 16;                // tokens that leave with one copy
constexpr int kChunk = 32;                    // tokens that a warpgroup finishes together
constexpr int kBuffers = 4;                   // of a chunk, a warpgroup
constexpr int kScaleThreads = 2 * kWarpSize;  // that compute the scales of rows to be normed
constexpr int kBoxBytes = kBoxTokens * kPanelRowBytes;
constexpr int kChunkBytes = kChunk * kPanelRowBytes;
constexpr int kSharedLimit = 227 * 1024 - 1024;  // less barriers, and what aligns the stages behind them

template <int kTokens>
struct Shape {
  static constexpr int kPanelBytes = kDepth * kPanelRowBytes;  // 64 features
  static constexpr int kWeightBytes = kGroups * kPanelBytes;
  static constexpr int kInputBytes = kTokens * kPanelRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kScaleBytes = kTokens > kMaxNormedTokens ? 0 : kTokens * sizeof(float2);
  // Where the tile leaves from: a few chunks in turn, or, where a residual is added, all of it, as it was fetched to.
  static constexpr int outBytes(bool residual) {
    return residual ? kGroups * kTokens * kPanelRowBytes : kGroups * kBuffers * kChunkBytes;
  }
  static constexpr int stages(bool residual) {
    const int fit = (kSharedLimit - outBytes(residual) - kScaleBytes) / kStageBytes;
    return fit < kMaxStages ? fit : kMaxStages;
  }
  static constexpr int sharedBytes(bool residual) {
    return stages(residual) * kStageBytes + outBytes(residual) + kScaleBytes;
  }
};

struct Maps {
  CUtensorMap x;         // [T,K] in boxes of the tokens that one block fetches for its cluster
  CUtensorMap weight;    // [K,N] in boxes of 64 x 64
  CUtensorMap y;         // [T,N] in boxes of 16 tokens
  CUtensorMap residual;  // [T,N] in boxes of a tile's tokens
};

enum class Normed { kNothing, kInput, kResidual };

struct Work {
  const void* bias;
  const float* column_sums;    // where the input is normed
  const void* residual_scale;  // where the residual is
  const float2* moments_in;    // of what is normed
  float2* moments_out;         // or null
  int groups_in;               // of 64 neighbours
  float epsilon, per_group;    // 1 / groups_in
  Normed normed;
  int T, N, stages;  // of the reduction
  int ring_stages;   // in shared memory
  Activation activation;
  bool residual;
  LinearTile tile;
  int owned_shift;                 // blocks that share a tile finish 16 << owned_shift of its tokens in turn
  int feature_clusters, clusters;  // clusters of tiles: along the features, in all
};

struct Barriers {
  uint64_t full[kMaxStages], empty[kMaxStages], residual[kGroups], scales_full, scales_empty;
};

// Place in the ring of stages, and how often it went round.
struct Ring {
  const int stages;
  int stage = 0;
  unsigned parity = 0;
  __device__ explicit Ring(int stages) : stages(stages) {}
  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Where this block stands in its cluster, and what it computes. The blocks of a cluster that differ in `part` share a
// tile: each sums its part of the reduction.
struct Position {
  unsigned rank, group;  // in the cluster; the first of those with the same part
  int feature, token, part;
  int first, step;  // clusters of tiles
  int begin, end;   // stages of the reduction

  __device__ explicit Position(const Work& work) : rank(clusterRank()) {
    const LinearTile& tile = work.tile;
    const int shared = tile.cluster_features * tile.cluster_tokens;
    part = rank / shared;
    group = part * shared;
    feature = (rank - group) % tile.cluster_features;
    token = (rank - group) / tile.cluster_features;
    first = blockIdx.x / (shared * tile.parts);
    step = gridDim.x / (shared * tile.parts);
    begin = work.stages * part / tile.parts;
    end = work.stages * (part + 1) / tile.parts;
  }
  __device__ int featureTile(const Work& work, int cluster) const {
    return cluster % work.feature_clusters * work.tile.cluster_features + feature;
  }
  __device__ int tokenTile(const Work& work, int cluster) const {
    return cluster / work.feature_clusters * work.tile.cluster_tokens + token;
  }
};

}  // namespace padfree
