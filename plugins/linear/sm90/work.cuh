// SPDX-License-Identifier: Apache-2.0
// The work of a launch of the Hopper kernel, and which part of it belongs to a block.
#pragma once

#include <cuda.h>

#include "common/ptx/cluster.cuh"
#include "linear/tiling.h"

namespace padfree {

struct Maps {
  CUtensorMap x;          // [T,K] in boxes of the tokens that one block fetches for its cluster
  CUtensorMap weight;     // [K,N] in boxes of 64 features by what one block fetches of a stage
  CUtensorMap y;          // [T,N], gated [T,N/2], in boxes of 16 tokens
  CUtensorMap y_at_once;  // the same in boxes of what leaves together, where all of that is this block's
  CUtensorMap residual;   // [T,N] in boxes of a tile's tokens
};

// With e4m3 operands.
struct E4m3Maps : Maps {
  CUtensorMap y_e4m3, y_e4m3_at_once;  // as y, where both leave; weight: [K,8,2,N/16] in what one block fetches
};

enum class Normed { kNothing, kInput, kResidual };

struct Work {
  const void* bias;
  const void* residual_scale;  // where the residual is; of features that are rotated, where heads are normed
  const float2* moments_in;    // of what is normed
  float2* moments_out;         // or null
  int groups_in;               // of 64 neighbours
  float epsilon, per_group;    // 1 / groups_in
  Normed normed;
  int T, N, stages;  // of the reduction
  int ring_stages;   // in shared memory
  Activation activation;
  bool residual, paced;
  LinearTiling tiling;
  int parts_shift, shared_shift, features_shift;  // logarithms of blocks: that share a tile, the others of a cluster
  int owned_shift;         // blocks that share a tile store 16 << owned_shift of its tokens, one after the other
  unsigned same_features;  // bits of the blocks of a cluster with the features of the first
  int feature_clusters, clusters;  // clusters of tiles: along the features, in all
  uint64_t per_feature_cluster;    // 2^32 / feature_clusters, rounded up
  bool rms, gated;                 // norms take no mean away; features are u and v alternating
  int rotary_features;             // features that are rotated in pairs
  const int* positions;            // [T], for those
  const float* frequencies;        // [rotary_features / 2]
  const float* scale;              // [N], of sums of e4m3
  float per_y_scale;               // 1 / y_scale
  bool writes_y, writes_e4m3;
  int feature_tiles, ranges;  // where input is resident: of 64 features; ranges of these, each a block's
  float head_epsilon;         // where heads are normed
  bool leaves_room;           // on other multiprocessors, for the next grid's blocks and their first weights
  bool wide_heads;            // whether heads are two tiles side by side, of two blocks of a cluster
};

// Where this block stands in its cluster, and what it computes. The blocks of a cluster that differ in `part` share a
// tile: each sums its part of the reduction.
struct BlockCoord {
  unsigned rank, group;  // in the cluster; the first of those with the same part
  int feature, token, part;
  int first, step;  // clusters of tiles
  int begin, end;   // stages of the reduction

  __device__ explicit BlockCoord(const Work& work) : rank(clusterRank()) {
    part = rank >> work.shared_shift;
    group = part << work.shared_shift;
    feature = (rank - group) & (work.tiling.cluster_features - 1);
    token = (rank - group) >> work.features_shift;
    const int cluster_shift = work.shared_shift + work.parts_shift;
    first = blockIdx.x >> cluster_shift;
    step = gridDim.x >> cluster_shift;
    begin = work.stages * part >> work.parts_shift;
    end = work.stages * (part + 1) >> work.parts_shift;
  }
  // kHeadsFirst: clusters of heads that are normed and rotated come before all others, which take a third less time:
  // where both take turns, some blocks have heads alone, and the others wait for them in the end.
  template <bool kHeadsFirst = false>
  __device__ int featureTile(const Work& work, int cluster) const {
    if constexpr (kHeadsFirst) {
      return headsFirst(work, cluster).feature_cluster * work.tiling.cluster_features + feature;
    }
    return (cluster - tokenCluster(work, cluster) * work.feature_clusters) * work.tiling.cluster_features + feature;
  }
  // The same of ranges, where input is resident; which tiles one has.
  __device__ static int rangeBegin(const Work& work, int range) { return range * work.feature_tiles / work.ranges; }
  template <bool kHeadsFirst = false>
  __device__ int tokenTile(const Work& work, int cluster) const {
    if constexpr (kHeadsFirst) {
      return headsFirst(work, cluster).token_cluster * work.tiling.cluster_tokens + token;
    }
    return tokenCluster(work, cluster) * work.tiling.cluster_tokens + token;
  }

 private:
  struct ClusterCoord {
    int feature_cluster, token_cluster;
  };
  static __device__ ClusterCoord headsFirst(const Work& work, int cluster) {
    const unsigned of_heads = ceilDiv(work.rotary_features, kLinearFeatures << work.features_shift);
    const unsigned heads = of_heads * (work.clusters / static_cast<unsigned>(work.feature_clusters));
    const bool is_head = static_cast<unsigned>(cluster) < heads;
    const unsigned number = is_head ? cluster : cluster - heads;
    const unsigned count = is_head ? of_heads : work.feature_clusters - of_heads, token_cluster = number / count;
    return {static_cast<int>(number - token_cluster * count + (is_head ? 0 : of_heads)),
            static_cast<int>(token_cluster)};
  }
  static __device__ int tokenCluster(const Work& work, int cluster) {
    return static_cast<int>(cluster * work.per_feature_cluster >> 32);
  }
};

}  // namespace padfree
