// SPDX-License-Identifier: Apache-2.0
// The two threads of a block that fetch, one the weights and one the input: what a stage costs them in instructions
// bounds how fast stages follow each other.
#pragma once

#include "common/dependent_launch.cuh"
#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

// Where all blocks start by filling their rings, they ask the L2 cache for more than it delivers in that time, and a
// block that starts late waits behind stages that others need much later. So in the first round a stage is requested
// when the one kPacedStages before it has arrived.
template <int kTokens>
__device__ void pace(const Work& work, Barriers& barriers, const Ring& ring) {
  if (kTokens < kLargeTokens || !work.paced || !ring.first_round || ring.stage < kPacedStages) return;
  barrierWait(&barriers.full[ring.stage - kPacedStages], 0);
}

// Weights are constant: they may be fetched while the grid before still writes x. Returns when all blocks of the
// cluster have left all stages: no barrier of the cluster waits for their arrivals here, and a launch fails where one
// comes to a block that has ended.
template <typename Operands, int kTokens, Out kOut, bool kHeadsFirst>
__device__ void fetchWeight(const Work& work, const typename Operands::Maps& maps, const BlockCoord& coord,
                            Barriers& barriers, unsigned stages) {
  using S = Shape<kTokens>;
  constexpr int kDepth = Operands::depth;
  const typename Operands::template Share<kGroups> share(coord.token, work.tiling.cluster_tokens);
  const auto blocks = static_cast<uint16_t>(work.same_features << (coord.group + coord.feature));
  Ring ring(work.ring_stages);
  for (int cluster = coord.first; cluster < work.clusters; cluster += coord.step) {
    const int feature = coord.featureTile<kHeadsFirst>(work, cluster) * kLinearFeatures;
#pragma unroll 1
    for (int row = coord.begin * kDepth; row < coord.end * kDepth; row += kDepth, ring.advance()) {
      uint64_t* const full = &barriers.full[ring.stage];
      barrierWait(&barriers.empty[ring.stage], ring.parity ^ 1);
      pace<kTokens>(work, barriers, ring);
      barrierExpect(full, S::kWeightBytes);
      share.fetch(maps, stages + ring.stage * S::kStageBytes, feature, row, full, blocks);
    }
    if constexpr (kOut == Out::kStages) {
      for (int group = 0; group < kGroups; ++group, ring.advance()) {
        barrierWait(&barriers.empty[ring.stage], ring.parity ^ 1);
        barrierArrive(&barriers.full[ring.stage]);
      }
    }
  }
  for (int i = 0; i < work.ring_stages; ++i, ring.advance()) barrierWait(&barriers.empty[ring.stage], ring.parity ^ 1);
}

// Fetches the input, and the residual after it where it has stages.
template <typename Operands, int kTokens, Out kOut, bool kHeadsFirst>
__device__ void fetchInput(const Work& work, const Maps& maps, const BlockCoord& coord, Barriers& barriers,
                           unsigned stages) {
  using S = Shape<kTokens>;
  constexpr int kDepth = Operands::depth;
  const int tokens = kTokens / work.tiling.cluster_features;  // this block's, for its cluster
  const int first = coord.feature * tokens;
  const auto blocks = static_cast<uint16_t>(((1u << work.tiling.cluster_features) - 1)
                                            << (coord.group + coord.token * work.tiling.cluster_features));
  Ring ring(work.ring_stages);
  waitForPriorGrids();
  if (kTokens < kLargeTokens && work.leaves_room) releaseNextGrid();  // whose first weights arrive meanwhile
  for (int cluster = coord.first; cluster < work.clusters; cluster += coord.step) {
    const int token = coord.tokenTile<kHeadsFirst>(work, cluster) * kTokens + first;
#pragma unroll 1
    for (int column = coord.begin * kDepth; column < coord.end * kDepth; column += kDepth, ring.advance()) {
      uint64_t* const full = &barriers.full[ring.stage];
      barrierWait(&barriers.empty[ring.stage], ring.parity ^ 1);
      pace<kTokens>(work, barriers, ring);
      barrierExpect(full, S::kInputBytes);
      copyBox(stages + ring.stage * S::kStageBytes + S::kWeightBytes + first * kPanelRowBytes, maps.x, column, token,
              full, blocks);
    }
    if constexpr (kOut == Out::kStages) {
      const int feature = coord.featureTile<kHeadsFirst>(work, cluster) * kLinearFeatures;
      for (int group = 0; group < kGroups; ++group, ring.advance()) {
        uint64_t* const full = &barriers.full[ring.stage];
        barrierWait(&barriers.empty[ring.stage], ring.parity ^ 1);
        barrierExpect(full, S::kInputBytes);
        copyBox(stages + ring.stage * S::kStageBytes, maps.residual, feature + group * kGroupFeatures, token - first,
                full);
      }
    }
  }
  // Where there is no room, not earlier: the next grid's blocks would fetch while this grid still multiplies.
  releaseNextGrid();
}

}  // namespace padfree
