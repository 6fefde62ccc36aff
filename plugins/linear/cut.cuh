// SPDX-License-Identifier: Apache-2.0
// How the Hopper kernel cuts a product up: warpgroups, stages of shared memory, blocks of a cluster.
#pragma once

#include <cuda.h>

#include "common/device.cuh"
#include "common/integers.h"
#include "common/panel.cuh"
#include "common/ptx/barriers.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/wgmma.cuh"
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
constexpr int kChunkBoxes = 4;                // that leave together, where a tile leaves in chunks
constexpr int kLeastBuffers = 2;              // of a chunk, a warpgroup
constexpr int kScaleThreads = 2 * kWarpSize;  // that compute the scales of rows to be normed
constexpr int kLargeTokens = 128;  // of tiles of which a block takes several, and fetches first stages in turn:
constexpr int kPacedStages = 2;    // so many at once
constexpr int kBoxBytes = kBoxTokens * kPanelRowBytes;
constexpr int kChunkBytes = kChunkBoxes * kBoxBytes;
constexpr int kSharedLimit = 227 * 1024 - 1024;  // less barriers, and what aligns the stages behind them

// Where results leave from.
enum class Out {
  kChunks,  // chunks of them in turn, as many as the stages leave room for
  kTile,    // a place for all of a tile, to which its residual is fetched
  kStages   // the same in two stages of the ring, one for each warpgroup
};

template <int kTokens>
struct Shape {
  static constexpr int kPanelBytes = kDepth * kPanelRowBytes;  // 64 features
  static constexpr int kWeightBytes = kGroups * kPanelBytes;
  static constexpr int kInputBytes = kTokens * kPanelRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kScaleBytes = kTokens * sizeof(float2);
  static constexpr int kTileBytes = kGroups * kTokens * kPanelRowBytes;  // of results
  static constexpr int stagesBeside(int out_bytes) {
    const int fit = (kSharedLimit - out_bytes - kScaleBytes) / kStageBytes;
    return fit < kMaxStages ? fit : kMaxStages;
  }
  static constexpr int kBoxes = kTokens / kBoxTokens;
  static constexpr int kChunks = ceilDiv(kBoxes, kChunkBoxes);
  static constexpr int kFit =  // beside as many stages as least buffers leave room for
      (kSharedLimit - kScaleBytes - stagesBeside(kGroups * kLeastBuffers * kChunkBytes) * kStageBytes) /
      (kGroups * kChunkBytes);
  static constexpr int kBuffers = kFit < kChunks ? kFit : kChunks < 2 ? 2 : kChunks;
  static constexpr int outBytes(Out out) {
    return out == Out::kStages ? 0 : out == Out::kTile ? kTileBytes : kGroups * kBuffers * kChunkBytes;
  }
  static constexpr int boxesAtOnce(Out out) { return out == Out::kChunks ? kChunkBoxes : kBoxes; }  // that leave
  static constexpr int stages(Out out) { return stagesBeside(outBytes(out)); }
  static constexpr int sharedBytes(Out out) { return stages(out) * kStageBytes + outBytes(out) + kScaleBytes; }
};

struct Maps {
  CUtensorMap x;          // [T,K] in boxes of the tokens that one block fetches for its cluster
  CUtensorMap weight;     // [K,N] in boxes of 64 features by what one block fetches of a stage
  CUtensorMap y;          // [T,N] in boxes of 16 tokens
  CUtensorMap y_at_once;  // [T,N] in boxes of what leaves together, where all of that is this block's
  CUtensorMap residual;   // [T,N] in boxes of a tile's tokens
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
  bool residual, paced;
  LinearTile tile;
  int parts_shift, shared_shift, features_shift;  // logarithms of blocks: that share a tile, the others of a cluster
  int owned_shift;                 // blocks that share a tile finish 16 << owned_shift of its tokens in turn
  unsigned same_features;          // bits of the blocks of a cluster with the features of the first
  int feature_clusters, clusters;  // clusters of tiles: along the features, in all
  uint64_t per_feature_cluster;    // 2^32 / feature_clusters, rounded up
};

struct Barriers {
  uint64_t full[kMaxStages], empty[kMaxStages], residual[kGroups], scales_full, scales_empty;
};

// Place in the ring of stages, and how often it went round.
struct Ring {
  const int stages;
  int stage = 0;
  unsigned parity = 0;
  bool first_round = true;
  __device__ explicit Ring(int stages) : stages(stages) {}
  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
      first_round = false;
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
    part = rank >> work.shared_shift;
    group = part << work.shared_shift;
    feature = (rank - group) & (work.tile.cluster_features - 1);
    token = (rank - group) >> work.features_shift;
    const int cluster_shift = work.shared_shift + work.parts_shift;
    first = blockIdx.x >> cluster_shift;
    step = gridDim.x >> cluster_shift;
    begin = work.stages * part >> work.parts_shift;
    end = work.stages * (part + 1) >> work.parts_shift;
  }
  __device__ int featureTile(const Work& work, int cluster) const {
    return (cluster - tokenCluster(work, cluster) * work.feature_clusters) * work.tile.cluster_features + feature;
  }
  __device__ int tokenTile(const Work& work, int cluster) const {
    return tokenCluster(work, cluster) * work.tile.cluster_tokens + token;
  }

 private:
  static __device__ int tokenCluster(const Work& work, int cluster) {
    return static_cast<int>(cluster * work.per_feature_cluster >> 32);
  }
};

}  // namespace padfree
