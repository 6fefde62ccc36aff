// SPDX-License-Identifier: Apache-2.0
// A warpgroup of the Hopper kernel that multiplies: sums of its 64 features in registers, then norms, bias, activation
// and residual on their way out.
#pragma once

#include "common/ptx/mma.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"
#include "linear/rotation.cuh"
#include "linear/sm90/epilogue.cuh"
#include "linear/sm90/moments.cuh"
#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

template <typename Operands, int kTokens, typename Epilogue>
class Consumer {
  using S = Shape<kTokens>;
  using T = typename Operands::Result;
  using Maps = typename Operands::Maps;
  using Results = typename Operands::template Results<Epilogue>;
  static constexpr int kBoxes = S::kBoxes;
  // Warpgroups that are in step finish at the same time, and nothing is multiplied meanwhile. One that is behind has
  // the tensor cores alone while the other finishes, and so stays behind. It pays where a finish is long beside the
  // products (docs/notes/2026-11-26-streams-in-e4m3.md).
  static constexpr int kStagesBehind = Operands::scaled && leavesInChunks(Epilogue::out) ? 2 : 0;
  static_assert(S::stages(Epilogue::out) > kStagesBehind);
  static constexpr int kSumsBarrier = kGroups + 1, kBehindBarrier = kGroups + 2;  // behind one for each warpgroup

 public:
  __device__ Consumer(const Work& work, const Maps& maps, Barriers& barriers, unsigned char* stages, unsigned char* out,
                      const float2* scales)
      : epilogue_(work),
        work_(work),
        maps_(maps),
        barriers_(barriers),
        stages_(stages),
        stages_address_(sharedAddress(stages)),
        group_(__shfl_sync(kFullMask, threadIdx.x / kWarpgroup, 0) - 1),
        in_group_(threadIdx.x % kWarpgroup),
        lane_(threadIdx.x % kWarpSize),
        out_(out + group_ * (S::outBytes(Epilogue::out) / kGroups)),
        scales_(scales),
        ring_(work.ring_stages) {}

  __device__ void run(const Position& at) {
    for (int cluster = at.first; cluster < work_.clusters; cluster += at.step) {
      const int feature = at.featureTile(work_, cluster) * kLinearFeatures + group_ * kGroupFeatures;
      const int token = at.tokenTile(work_, cluster) * kTokens;
      if (leavesFromTile(Epilogue::out)) prepareTile(feature, token);
      const Features features = multiply(at, feature + warp() * 16 + Results::firstFeature(lane_), token);
      if (epilogue_.shares_tile) gather(at);
      if (epilogue_.normed) barrierWait(&barriers_.scales_full, tile_ % 2);
      if constexpr (leavesInChunks(Epilogue::out)) {
        if constexpr (Epilogue::rotates) {
          if (is_pair_) {
            finish<true>(at, feature, token, features);
          } else {
            finish<false>(at, feature, token, features);
          }
        } else {
          finish<false>(at, feature, token, features);
        }
      } else {
        if (Epilogue::out == Out::kStages) {
          takeStage(at, cluster + at.step >= work_.clusters);
        } else if (epilogue_.residual) {
          barrierWait(&barriers_.residual[group_], tile_ % 2);
        }
        finishInPlace(at, feature, token, features);
      }
      __syncwarp();
      if (epilogue_.normed && lane_ == 0) barrierArrive(&barriers_.scales_empty);
      ++tile_;
    }
    if (in_group_ == 0) waitStoresRead<0>();
  }

 private:
  struct Pair {
    T x, y;
  };
  // Of the two features that this thread has the sums of, neighbours or 8 apart; zeros for those that there are not.
  struct Features {
    Pair bias, residual_scale;
    float2 column_sum, scale;
  };

  __device__ int warp() const { return in_group_ / kWarpSize; }

  // Sums the tile's products. What belongs to the features from `feature` on, and the tokens' positions, are loaded
  // meanwhile: ahead of the first tile, whose input is waited for anyway, and beside the first stage of those that
  // follow it.
  __device__ Features multiply(const Position& at, int feature, int token) {
    constexpr bool kManyTiles = leavesInChunks(Epilogue::out) && kTokens >= kLargeTokens;
    Features features;
    if (!kManyTiles || tile_ == 0) features = loadFeatures(feature, token);
    // Of the first of several tiles: whether the second warpgroup starts kStagesBehind behind the first.
    const bool parts_ways = kStagesBehind > 0 && tile_ == 0 && !epilogue_.shares_tile &&
                            at.first + at.step < work_.clusters && at.end - at.begin > kStagesBehind;
    if (parts_ways && group_ > 0) namedBarrier(kBehindBarrier, kGroups * kWarpgroup);
    int before = 0;
    for (int i = at.begin; i < at.end; ++i, ring_.advance()) {
      const uint64_t a =
          fullDescriptor(panelDescriptor(stages_address_ + ring_.stage * S::kStageBytes + group_ * S::kPanelBytes));
      const uint64_t b =
          fullDescriptor(panelDescriptor(stages_address_ + ring_.stage * S::kStageBytes + S::kWeightBytes));
      if (Epilogue::out == Out::kStages && i == at.begin + 1) leaveStage(at);
      barrierWait(&barriers_.full[ring_.stage], ring_.parity);
      wgmmaFence();
      Operands::template multiply<kTokens>(sums_, a, b, i > at.begin);
      wgmmaCommit();
      if (kManyTiles && i == at.begin && tile_ > 0) features = loadFeatures(feature, token);
      wgmmaWait<1>();
      if (parts_ways && group_ == 0 && i == at.begin + kStagesBehind) {
        namedArrive(kBehindBarrier, kGroups * kWarpgroup);
      }
      if (i > at.begin) release(before, at);
      before = ring_.stage;
    }
    wgmmaWait<0>();
    if (at.begin < at.end) release(before, at);  // or parts without work would tell of a stage that they never had
    if (Epilogue::out == Out::kStages) leaveStage(at);
    return features;
  }

  // The stages behind the tile's last hold the residual, one for each warpgroup. Behind the last tile nothing is
  // fetched any more: its stages are left while it is still worked on in them.
  __device__ void takeStage(const Position& at, bool last) {
    for (int group = 0; group < kGroups; ++group, ring_.advance()) {
      barrierWait(&barriers_.full[ring_.stage], ring_.parity);
      __syncwarp();  // or lanes that leave the stage would be ahead of others that still look for its arrival
      if (group == group_) out_ = stages_ + ring_.stage * S::kStageBytes;
      if (group == group_ && !last) {
        stage_out_ = ring_.stage;
      } else {
        release(ring_.stage, at);
      }
    }
  }

  // Once, and not before the next tile's first stage: by then the tile has left.
  __device__ void leaveStage(const Position& at) {
    if (stage_out_ < 0) return;
    if (in_group_ == 0) waitStoresRead<0>();
    __syncwarp();
    release(stage_out_, at);
    stage_out_ = -1;
  }

  // Tells all blocks beside this one that this warp has left a stage. Those that fetch for it, with the same tokens or
  // features, are not enough: a block fills the residual's stages alone, so that it may be a round ahead of a neighbour
  // who still waits for another, and its arrival would count for that one's (tests/plugins/linear_barriers.py).
  __device__ void release(int stage, const Position& at) {
    if (lane_ >> work_.shared_shift == 0) barrierArriveAt(&barriers_.empty[stage], at.group + lane_);
  }

  // Whether this block finishes the 16 tokens from 16 * box on.
  __device__ bool owns(const Position& at, int box) const {
    return (box >> work_.owned_shift & (work_.tiling.parts - 1)) == at.part;
  }

  // Adds what the other blocks of the cluster summed for this tile, in the order of their parts: sums are left where
  // the stages were, and each block reads those of the boxes that it finishes.
  __device__ void gather(const Position& at) {
    constexpr int kHalf = kWarpgroup * sizeof(float4);
    const unsigned mine = stages_address_ + group_ * kBoxes * 2 * kHalf + in_group_ * sizeof(float4);
    namedBarrier(kSumsBarrier, kGroups * kWarpgroup);
#pragma unroll
    for (int i = 0; i < 2 * kBoxes; ++i) {
      if (!owns(at, i / 2)) storeShared(mine + i * kHalf, sums_[i]);
    }
    clusterSyncMemory();
    const int blocks = work_.tiling.cluster_features * work_.tiling.cluster_tokens;
    for (int part = 0; part < work_.tiling.parts; ++part) {
      if (part == at.part) continue;
      const unsigned theirs = addressAt(mine, at.rank + (part - at.part) * blocks);
#pragma unroll
      for (int i = 0; i < 2 * kBoxes; ++i) {
        if (owns(at, i / 2)) addShared(sums_[i], theirs + i * kHalf);
      }
    }
  }

  __device__ Features loadFeatures(int feature, int token) {
    if constexpr (Epilogue::rotates) loadRotation(feature, token);
    const auto both = [&](auto value, const auto* values) {
      constexpr int kStep = Results::kFeatureStep;
      if (values && feature < work_.N) value.x = values[feature];
      if (values && feature + kStep < work_.N) value.y = values[feature + kStep];
      return value;
    };
    const Pair zeros{fromFloat<T>(0.f), fromFloat<T>(0.f)};
    return {both(zeros, static_cast<const T*>(work_.bias)), both(zeros, static_cast<const T*>(work_.residual_scale)),
            both(float2{}, work_.column_sums), Operands::scaled ? both(float2{}, work_.scale) : float2{}};
  }

  // Pairs are 8 features apart, as those of a thread; lane i takes the positions of the tokens i, i + 32, ...
  __device__ void loadRotation(int feature, int token) {
    is_pair_ = feature < work_.rotary_features;
    if (!is_pair_) return;
    frequency_ = work_.frequencies[feature / kPairBlock * 8 + lane_ / 4];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const int place = token + i * kWarpSize + lane_;
      positions_[i] = static_cast<float>(place < work_.T ? work_.positions[place] : 0);
    }
  }

  // Once the tile before has left from there, asks for the tile's residual.
  __device__ void prepareTile(int feature, int token) {
    if (in_group_ == 0) waitStoresRead<0>();
    namedBarrier(group_ + 1, kWarpgroup);  // nor does anybody take moments there any more
    if (in_group_ != 0 || !epilogue_.residual) return;
    barrierExpect(&barriers_.residual[group_], kTokens * kPanelRowBytes);
    copyBox(sharedAddress(out_), maps_.residual, feature, token, &barriers_.residual[group_]);
  }

  // Scale and shift of this thread's four tokens among the 16 of a box: a pair of each eight.
  struct Scales {
    float4 of[2];
  };
  __device__ Scales loadScales(int box) const {
    const float2* const pair = scales_ + box * kBoxTokens + lane_ % 4 * 2;
    return {*reinterpret_cast<const float4*>(pair), *reinterpret_cast<const float4*>(pair + 8)};
  }

  // Sums of a box, normed if that is asked for, with bias: two tokens of two features, twice.
  __device__ void biased(float (&value)[4][2], int box, const Features& of, const Scales& scales) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float (&sum)[4] = sums_[box * 2 + i / 2];
      const float of_feature = toFloat(i % 2 ? of.bias.y : of.bias.x);
      float bias[2] = {of_feature, of_feature};
      float scale[2] = {1.f, 1.f};
      if (epilogue_.norms_input) {
        const float column_sum = i % 2 ? of.column_sum.y : of.column_sum.x;
        const float4 with = scales.of[i / 2];
        scale[0] = with.x, scale[1] = with.z;
        bias[0] = fmaf(with.y, column_sum, bias[0]), bias[1] = fmaf(with.w, column_sum, bias[1]);
      }
      if (Operands::scaled) {
        const float of_sum = i % 2 ? of.scale.y : of.scale.x;
        scale[0] *= of_sum, scale[1] *= of_sum;
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) value[i][k] = fmaf(scale[k], sum[i % 2 * 2 + k], bias[k]);
    }
  }

  // Turns the pairs of a box.
  __device__ void turn(float (&value)[4][2], int box) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int lane = box % 2 * kBoxTokens + i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      const float position = __shfl_sync(kFullMask, positions_[box / 2], lane);
      turnPair(value[i / 2 * 2][i % 2], value[i / 2 * 2 + 1][i % 2], position * frequency_);
    }
  }

  __device__ bool finishes(const Position& at, int box) const { return !epilogue_.shares_tile || owns(at, box); }

  // Once all warps have written the boxes from `begin` on to `panel`. One thread.
  __device__ void storeBoxes(const CUtensorMap& map, const CUtensorMap& at_once, const Position& at, int feature,
                             int token, unsigned char* panel, int box_bytes, int begin, int end) const {
    if (!epilogue_.shares_tile && end - begin == S::boxesAtOnce(Epilogue::out)) {
      storeBox(at_once, sharedAddress(panel), feature, token + begin * kBoxTokens);
      return;
    }
#pragma unroll
    for (int box = begin; box < end; ++box) {
      if (!finishes(at, box)) continue;
      storeBox(map, sharedAddress(panel) + (box - begin) * box_bytes, feature, token + box * kBoxTokens);
    }
  }

  // Of a tile to which nothing is added: through some buffers of shared memory, where a transposing store turns
  // features back into columns.
  template <bool kTurns>
  __device__ void finish(const Position& at, int feature, int token, const Features& of) {
    Scales scales{};
    if (epilogue_.norms_input) scales = loadScales(0);
#pragma unroll
    for (int begin = 0; begin < kBoxes; begin += kChunkBoxes) {
      const int end = min(begin + kChunkBoxes, kBoxes);
      unsigned char* const panel = out_ + buffer_ * kChunkBoxes * boxBytes(Epilogue::out);
#pragma unroll
      for (int box = begin; box < end; ++box) {
        if (!finishes(at, box)) continue;
        float value[4][2];
        if (epilogue_.norms_input && epilogue_.shares_tile) scales = loadScales(box);
        biased(value, box, of, scales);
        if constexpr (kTurns) turn(value, box);
        const auto loadNext = [&] {
          if (epilogue_.norms_input && !epilogue_.shares_tile && box + 1 < kBoxes) scales = loadScales(box + 1);
        };
        Results::storeActivated(value, panel + (box - begin) * boxBytes(Epilogue::out), warp(), lane_, epilogue_, work_,
                                loadNext);
      }
      fenceAsyncProxy();
      if (in_group_ == 0) waitStoresRead<S::kBuffers - 2>();  // for the next chunk's buffer
      namedBarrier(group_ + 1, kWarpgroup);
      if (in_group_ == 0) {
        storeBoxes(maps_.y, maps_.y_at_once, at, Epilogue::gated ? feature / 2 : feature, token, panel,
                   boxBytes(Epilogue::out), begin, end);
        commitStores();
      }
      if (++buffer_ == S::kBuffers) buffer_ = 0;
    }
  }

  // Of a tile that its residual was fetched to, or whose moments are asked for: all of it before any of it leaves.
  __device__ void finishInPlace(const Position& at, int feature, int token, const Features& of) {
    unsigned residual_ahead[4] = {};
    Scales scales{};
    const auto load = [&](int box) {
      if (epilogue_.residual) Results::loadResidual(residual_ahead, out_ + box * kBoxBytes, warp(), lane_);
      if (epilogue_.normed) scales = loadScales(box);
    };
    if (!epilogue_.shares_tile) load(0);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (!finishes(at, box)) continue;
      if (epilogue_.shares_tile) load(box);
      float value[4][2];
      biased(value, box, of, scales);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i / 2][i % 2] = activate(value[i / 2][i % 2], epilogue_.activation);
      if (epilogue_.residual) addResidual(value, residual_ahead, of, scales);
      if (!epilogue_.shares_tile && box + 1 < kBoxes) load(box + 1);
      Results::template store<kTokens>(value, out_, box, warp(), lane_, epilogue_, work_);
    }
    fenceAsyncProxy();
    namedBarrier(group_ + 1, kWarpgroup);
    if (in_group_ == 0) {
      Results::template forEachMap<kTokens>(
          maps_, out_, epilogue_,
          [&](const CUtensorMap& map, const CUtensorMap& at_once, unsigned char* from, int box_bytes) {
            storeBoxes(map, at_once, at, feature, token, from, box_bytes, 0, kBoxes);
          });
      commitStores();
    }
    if (epilogue_.moments) storeMoments(at, feature, token);
  }

  __device__ void addResidual(float (&value)[4][2], const unsigned (&packed)[4], const Features& of,
                              const Scales& scales) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 residual = Results::residualOf(packed, i);
      float gamma = 1.f;
      if (epilogue_.norms_residual) {
        const float4 with = scales.of[i / 2];
        residual = {fmaf(with.x, residual.x, with.y), fmaf(with.z, residual.y, with.w)};
        gamma = toFloat(i % 2 ? of.residual_scale.y : of.residual_scale.x);
      }
      value[i][0] = fmaf(gamma, residual.x, value[i][0]);
      value[i][1] = fmaf(gamma, residual.y, value[i][1]);
    }
  }

  // This warp takes those of 8 tokens of every 32.
  __device__ void storeMoments(const Position& at, int feature, int token) const {
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
      if (row < rows && finishes(at, row / kBoxTokens)) out[row] = momentsOf(sums[time], kGroupFeatures);
    }
  }

  const Epilogue epilogue_;  // of finish
  const Work& work_;
  const Maps& maps_;
  Barriers& barriers_;
  unsigned char* const stages_;
  const unsigned stages_address_;
  const int group_, in_group_, lane_;
  unsigned char* out_;
  const float2* const scales_;  // of the tile's tokens, where something is normed
  Ring ring_;
  int buffer_ = 0, tile_ = 0;  // for the next chunk; tiles finished
  int stage_out_ = -1;         // which a finished tile leaves from
  float sums_[kTokens / 8][4];
  static constexpr int kPositions = ceilDiv(kTokens, kWarpSize);
  // Where pairs are turned: whether this thread's features are one, by how much a position, the tokens' positions.
  bool is_pair_;
  float frequency_, positions_[kPositions];
};

}  // namespace padfree
