// SPDX-License-Identifier: Apache-2.0
// A warpgroup of the Hopper kernel that multiplies: sums of its 64 features in registers, where their epilogue follows.
#pragma once

#include "common/ptx/wgmma.cuh"
#include "linear/sm90/collective_epilogue.cuh"
#include "linear/sm90/moments.cuh"

namespace padfree {

template <typename Operands, int kTokens, typename Epilogue>
class Consumer : CollectiveEpilogue<Operands, Shape<kTokens>, Epilogue> {
  using S = Shape<kTokens>;
  using Base = CollectiveEpilogue<Operands, S, Epilogue>;
  using Base::epilogue_, Base::group_, Base::in_group_, Base::kAtOnce, Base::kBoxes, Base::lane_, Base::maps_,
      Base::out_, Base::sums_, Base::work_;
  using Base::scaleAndBias, Base::storesBox, Base::epilogueInChunks, Base::loadFeatures, Base::loadScales, Base::owns,
      Base::storeBoxes, Base::warp;
  using typename Base::Features, typename Base::Maps, typename Base::Results, typename Base::Scales, typename Base::T;
  // Warpgroups that are in step reach their epilogues together, and nothing is multiplied meanwhile. One that lags has
  // the tensor cores to itself while the other is in its epilogue, and so keeps lagging. That pays where the epilogue
  // is long compared with the main loop (docs/internals/tried-and-rejected.md has the figures for fp16).
  static constexpr int kLagStages = Operands::scaled && leavesInChunks(Epilogue::out) ? 2 : 0;
  static_assert(S::stages(Epilogue::out, 0) > kLagStages);
  static constexpr bool kHeadsFirst = headsComeFirst<Epilogue>(kTokens);
  static constexpr int kSumsBarrier = kGroups + 1, kLagBarrier = kGroups + 2;  // after one for each warpgroup

 public:
  __device__ Consumer(const Work& work, const Maps& maps, Barriers& barriers, unsigned char* stages, unsigned char* out,
                      const ScaleOf<Epilogue>* scales)
      : Base(work, maps, out, scales),
        barriers_(barriers),
        stages_(stages),
        stages_address_(sharedAddress(stages)),
        ring_(work.ring_stages) {}

  __device__ void run(const BlockCoord& coord) {
    for (int cluster = coord.first; cluster < work_.clusters; cluster += coord.step) {
      const int feature = coord.featureTile<kHeadsFirst>(work_, cluster) * kLinearFeatures + group_ * kGroupFeatures;
      const int token = coord.tokenTile<kHeadsFirst>(work_, cluster) * kTokens;
      if (leavesFromTile(Epilogue::out)) prepareTile(feature, token);
      const Features features = multiply(coord, feature + warp() * 16 + Results::firstFeature(lane_), token);
      if (epilogue_.shares_tile) reduceParts(coord);
      if (epilogue_.normed) barrierWait(&barriers_.scales.full, tile_ % 2);
      if constexpr (leavesInChunks(Epilogue::out)) {
        epilogueInChunks(coord, feature, token, features);
      } else {
        if (Epilogue::out == Out::kStages) {
          acquireOutStage(coord, cluster + coord.step >= work_.clusters);
        } else if (epilogue_.residual) {
          barrierWait(&barriers_.residual[group_], tile_ % 2);
        }
        epilogueInPlace(coord, feature, token, features);
      }
      __syncwarp();
      if (epilogue_.normed && lane_ == 0) barrierArrive(&barriers_.scales.empty);
      ++tile_;
    }
    if (in_group_ == 0) waitStoresRead<0>();
  }

 private:
  // Sums the tile's products. What belongs to the features from `feature` on, and the tokens' positions, are loaded
  // meanwhile: before the first tile, whose input is waited for anyway, and during the first stage of those that
  // follow it.
  __device__ Features multiply(const BlockCoord& coord, int feature, int token) {
    constexpr bool kManyTiles = leavesInChunks(Epilogue::out) && kTokens >= kLargeTokens;
    Features features;
    if (!kManyTiles || tile_ == 0) features = loadFeatures(feature, token);
    // Whether the second warpgroup starts kLagStages after the first, in the first of several tiles.
    const bool lags = kLagStages > 0 && tile_ == 0 && !epilogue_.shares_tile &&
                      coord.first + coord.step < work_.clusters && coord.end - coord.begin > kLagStages;
    if (lags && group_ > 0) namedBarrier(kLagBarrier, kGroups * kWarpgroup);
    int before = 0;
    for (int i = coord.begin; i < coord.end; ++i, ring_.advance()) {
      const uint64_t a =
          fullDescriptor(panelDescriptor(stages_address_ + ring_.stage * S::kStageBytes + group_ * S::kPanelBytes));
      const uint64_t b =
          fullDescriptor(panelDescriptor(stages_address_ + ring_.stage * S::kStageBytes + S::kWeightBytes));
      if (Epilogue::out == Out::kStages && i == coord.begin + 1) releaseOutStage(coord);
      barrierWait(&barriers_.full[ring_.stage], ring_.parity);
      wgmmaFence();
      Operands::template multiply<kTokens>(sums_, a, b, i > coord.begin);
      wgmmaCommit();
      if (kManyTiles && i == coord.begin && tile_ > 0) features = loadFeatures(feature, token);
      wgmmaWait<1>();
      if (lags && group_ == 0 && i == coord.begin + kLagStages) {
        namedArrive(kLagBarrier, kGroups * kWarpgroup);
      }
      if (i > coord.begin) release(before, coord);
      before = ring_.stage;
    }
    wgmmaWait<0>();
    if (coord.begin < coord.end)
      release(before, coord);  // otherwise parts without work would release a stage that they never had
    if (Epilogue::out == Out::kStages) releaseOutStage(coord);
    return features;
  }

  // The stages after the tile's last hold the residual, one for each warpgroup. After the last tile nothing is
  // fetched any more: its stages are released while the tile is still worked on in them. Without branches: after a
  // branch that may diverge, as far as the compiler knows, the ring is no longer in uniform registers, from which
  // matrix instructions take their descriptors, and the main loop moves each there (tests/plugins/test_loops.py).
  __device__ void acquireOutStage(const BlockCoord& coord, bool last) {
    for (int group = 0; group < kGroups; ++group, ring_.advance()) {
      barrierWait(&barriers_.full[ring_.stage], ring_.parity);
      __syncwarp();  // or lanes that leave the stage would be ahead of others that still look for its arrival
      const bool is_mine = group == group_, keeps = is_mine && !last;
      if (is_mine) out_ = stages_ + ring_.stage * S::kStageBytes;
      if (keeps) stage_out_ = ring_.stage;
      release(ring_.stage, coord, !keeps);
    }
  }

  // Once, and not before the next tile's first stage: by then the tile has left.
  __device__ void releaseOutStage(const BlockCoord& coord) {
    if (stage_out_ < 0) return;
    if (in_group_ == 0) waitStoresRead<0>();
    __syncwarp();
    release(stage_out_, coord);
    stage_out_ = -1;
  }

  // Tells all blocks with the same part that this warp has left a stage, if it `leaves` it. It is not enough to tell
  // those that fetch for it, with the same tokens or features: a block fills the residual's stages by itself, so that
  // it may be a round ahead of a neighbour that still waits for another block, and its arrival would count as that
  // block's (tests/plugins/linear_barriers.py).
  __device__ void release(int stage, const BlockCoord& coord, bool leaves = true) {
    if (leaves && lane_ >> work_.shared_shift == 0) barrierArriveAt(&barriers_.empty[stage], coord.group + lane_);
  }

  // Adds what the other blocks of the cluster summed for this tile, in the order of their parts: sums are left where
  // the stages were, and each block reads those of the boxes that it stores.
  __device__ void reduceParts(const BlockCoord& coord) {
    constexpr int kHalf = kWarpgroup * sizeof(float4);
    const unsigned mine = stages_address_ + group_ * kBoxes * 2 * kHalf + in_group_ * sizeof(float4);
    namedBarrier(kSumsBarrier, kGroups * kWarpgroup);
#pragma unroll
    for (int i = 0; i < 2 * kBoxes; ++i) {
      if (!owns(coord, i / 2)) storeShared(mine + i * kHalf, sums_[i]);
    }
    clusterSyncMemory();
    return work_.tiling.parts == 2 ? addParts<2>(coord, mine) : addParts<4>(coord, mine);
  }

  // Adds what the other blocks left at `sums` for the boxes that this one stores, all of a box on their way at once.
  template <int kParts>
  __device__ void addParts(const BlockCoord& coord, unsigned sums) {
    constexpr int kHalf = kWarpgroup * sizeof(float4), kOthers = kParts - 1;
    const int blocks = work_.tiling.cluster_features * work_.tiling.cluster_tokens;
    unsigned theirs[kOthers];
#pragma unroll
    for (int i = 0; i < kOthers; ++i) {
      theirs[i] = addressAt(sums, coord.rank + (i + (i >= coord.part) - coord.part) * blocks);
    }
#pragma unroll
    for (int i = 0; i < 2 * kBoxes; ++i) {
      if (!owns(coord, i / 2)) continue;
      float values[kOthers][4];
#pragma unroll
      for (int other = 0; other < kOthers; ++other) loadShared(values[other], theirs[other] + i * kHalf);
#pragma unroll
      for (int other = 0; other < kOthers; ++other) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums_[i][k] += values[other][k];
      }
    }
  }

  // Asks for the tile's residual once the previous tile has left its place.
  __device__ void prepareTile(int feature, int token) {
    if (in_group_ == 0) waitStoresRead<0>();
    namedBarrier(group_ + 1, kWarpgroup);  // nor does anybody take moments there any more
    if (in_group_ != 0 || !epilogue_.residual) return;
    barrierExpect(&barriers_.residual[group_], kTokens * kPanelRowBytes);
    copyBox(sharedAddress(out_), maps_.residual, feature, token, &barriers_.residual[group_]);
  }

  // The epilogue of a tile to which its residual was fetched, or whose moments are wanted. Where boxes do not fill two
  // halves one is in both: it leaves twice, as it is.
  __device__ void epilogueInPlace(const BlockCoord& coord, int feature, int token, const Features& features) {
    unsigned residual_ahead[4] = {};
    Scales scales{};
    const auto load = [&](int box) {
      if (epilogue_.residual) Results::loadResidual(residual_ahead, out_ + box * kBoxBytes, warp(), lane_);
      if (epilogue_.normed) scales = loadScales(box);
    };
    const auto storePart = [&](int begin) {
      namedBarrier(group_ + 1, kWarpgroup);
      if (in_group_ != 0) return;
      fenceAsyncProxy();
      Results::template forEachMap<kTokens>(
          maps_, out_, epilogue_,
          [&](const CUtensorMap& map, const CUtensorMap& at_once, unsigned char* from, int box_bytes) {
            const int end = epilogue_.shares_tile ? kBoxes : begin + kAtOnce;
            storeBoxes(map, at_once, coord, feature, token, from + begin * box_bytes, box_bytes, begin, end);
          });
      commitStores();
    };
    if (!epilogue_.shares_tile) load(0);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (kAtOnce < kBoxes && box == kAtOnce && !epilogue_.shares_tile) storePart(0);
      if (!storesBox(coord, box)) continue;
      if (epilogue_.shares_tile) load(box);
      float value[4][2];
      scaleAndBias(value, box, features, scales);
      activate(value, epilogue_.activation);
      if (epilogue_.residual) addResidual(value, residual_ahead, features, scales);
      if (!epilogue_.shares_tile && box + 1 < kBoxes) load(box + 1);
      Results::template store<kTokens>(value, out_, box, warp(), lane_, epilogue_, work_);
    }
    storePart(epilogue_.shares_tile ? 0 : kBoxes - kAtOnce);
    if (epilogue_.moments) storeMoments(coord, feature, token);
  }

  __device__ void addResidual(float (&value)[4][2], const unsigned (&packed)[4], const Features& features,
                              const Scales& scales) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 residual = Results::residualOf(packed, i);
      float gamma = 1.f;
      if (epilogue_.norms_residual) {
        const float4 pair_scale = scales.pairs[i / 2];
        residual = {fmaf(pair_scale.x, residual.x, pair_scale.y), fmaf(pair_scale.z, residual.y, pair_scale.w)};
        gamma = toFloat(i % 2 ? features.residual_scale.y : features.residual_scale.x);
      }
      value[i][0] = fmaf(gamma, residual.x, value[i][0]);
      value[i][1] = fmaf(gamma, residual.y, value[i][1]);
    }
  }

  // This warp stores those of 8 tokens of every 32.
  __device__ void storeMoments(const BlockCoord& coord, int feature, int token) const {
    constexpr int kStep = kWarps * 8, kTimes = ceilDiv(kTokens, kStep);
    const int first = in_group_ / kWarpSize * 8;
    float2* const out = work_.moments_out + int64_t{feature / kGroupFeatures} * work_.T + token;
    const int rows = isMomentsLane(lane_) && feature < work_.N ? min(kTokens, work_.T - token) : 0;
    float2 sums[kTimes];
    __syncwarp();  // one thread has issued the stores
    sumsOfRows<T, kStep, kTokens>(sums, out_, first, lane_);
#pragma unroll
    for (int time = 0; time < kTimes; ++time) {
      const int row = first + time * kStep + momentsToken(lane_);
      if (row < rows && storesBox(coord, row / kBoxTokens)) out[row] = momentsOf(sums[time], kGroupFeatures);
    }
  }

  Barriers& barriers_;
  unsigned char* const stages_;
  const unsigned stages_address_;
  Ring ring_;
  int tile_ = 0;        // tiles done
  int stage_out_ = -1;  // which a tile that is done leaves from
};

}  // namespace padfree
