// SPDX-License-Identifier: Apache-2.0
// A warpgroup of the Hopper kernel that multiplies: sums of its 64 features in registers, then norms, bias, activation
// and residual on their way out.
#pragma once

#include "linear/activation.cuh"
#include "linear/cut.cuh"
#include "linear/moments.cuh"
#include "linear/wgmma.cuh"

namespace padfree {

// What there is to do with a tile's sums. Code that finishes a tile runs once a tile, so that every jump over what is
// not needed waits for instructions: products of usual encoders have code of their own, without such jumps.
template <bool kNormsInput, bool kResidual, bool kNormsResidual, bool kMoments>
struct Known {
  static constexpr bool norms_input = kNormsInput, residual = kResidual, norms_residual = kNormsResidual,
                        moments = kMoments, shares_tile = false;
};
struct Any {
  static constexpr bool norms_residual = false, moments = false;
  bool norms_input, residual, shares_tile;
};
struct AnyNormed {
  bool norms_input, residual, norms_residual, moments, shares_tile;
};

template <typename T, int kTokens>
class Consumer {
  using S = Shape<kTokens>;
  static constexpr int kChunks = (kTokens + kChunk - 1) / kChunk;

 public:
  __device__ Consumer(const Work& work, const Maps& maps, Barriers& barriers, unsigned stages, unsigned char* out,
                      const float2* scales)
      : work_(work),
        maps_(maps),
        barriers_(barriers),
        stages_(stages),
        group_(__shfl_sync(kFullMask, threadIdx.x / kWarpgroup, 0) - 1),
        in_group_(threadIdx.x % kWarpgroup),
        lane_(threadIdx.x % kWarpSize),
        out_(out + group_ * (S::outBytes(work.residual) / kGroups)),
        scales_(scales),
        ring_(work.ring_stages) {}

  __device__ void run(const Position& at) {
    for (int cluster = at.first; cluster < work_.clusters; cluster += at.step) {
      const int feature = at.featureTile(work_, cluster) * kLinearFeatures + group_ * kGroupFeatures;
      const int token = at.tokenTile(work_, cluster) * kTokens;
      if (work_.residual) requestResidual(feature, token);
      const Features features = loadFeatures(feature + in_group_ / kWarpSize * 16 + lane_ / 4);
      multiply(at);
      if (work_.tile.parts > 1) gather(at);
      if (isNormed()) barrierWait(&barriers_.scales_full, tile_ % 2);
      if (work_.residual) barrierWait(&barriers_.residual[group_], tile_ % 2);
      finish(at, feature, token, features);
      __syncwarp();
      if (isNormed() && lane_ == 0) barrierArrive(&barriers_.scales_empty);
      ++tile_;
    }
  }

 private:
  // Of the two features that this thread has the sums of, 8 apart; zeros for those that there are not.
  struct Features {
    float2 bias, column_sum, residual_scale;
  };

  __device__ bool isNormed() const { return work_.normed != Normed::kNothing; }

  __device__ void multiply(const Position& at) {
    int before = 0;
    for (int i = at.begin; i < at.end; ++i, ring_.advance()) {
      const uint64_t a =
          fullDescriptor(panelDescriptor(stages_ + ring_.stage * S::kStageBytes + group_ * S::kPanelBytes));
      const uint64_t b = fullDescriptor(panelDescriptor(stages_ + ring_.stage * S::kStageBytes + S::kWeightBytes));
      barrierWait(&barriers_.full[ring_.stage], ring_.parity);
      wgmmaFence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        // 16 rows of W further, 16 columns of x further, in units of 16 bytes.
        multiplyTile<T, kTokens>(sums_, a + k * (16 * kPanelRowBytes >> 4), b + k * (16 * 2 >> 4),
                                 i > at.begin || k > 0);
      }
      wgmmaCommit();
      wgmmaWait<1>();
      if (i > at.begin) release(before, at);
      before = ring_.stage;
    }
    wgmmaWait<0>();
    release(before, at);
  }

  // Tells every block that fetches for this one that this warp has left a stage.
  __device__ void release(int stage, const Position& at) {
    const int blocks = work_.tile.cluster_features * work_.tile.cluster_tokens;
    if (lane_ < blocks) barrierArriveAt(&barriers_.empty[stage], at.group + lane_);
  }

  // Whether this block finishes the 16 tokens from 16 * box on.
  __device__ bool owns(const Position& at, int box) const {
    return (box >> work_.owned_shift & (work_.tile.parts - 1)) == at.part;
  }

  // Adds what the other blocks of the cluster summed for this tile, in the order of their parts: sums are left where
  // the stages were, and each block reads those of the boxes that it finishes.
  __device__ void gather(const Position& at) {
    constexpr int kBoxes = kTokens / kBoxTokens, kHalf = kWarpgroup * sizeof(float4);
    const unsigned mine = stages_ + group_ * kBoxes * 2 * kHalf + in_group_ * sizeof(float4);
    namedBarrier(kGroups + 1, kGroups * kWarpgroup);
#pragma unroll
    for (int i = 0; i < 2 * kBoxes; ++i) {
      if (!owns(at, i / 2)) storeShared(mine + i * kHalf, sums_[i]);
    }
    clusterSyncMemory();
    const int blocks = work_.tile.cluster_features * work_.tile.cluster_tokens;
    for (int part = 0; part < work_.tile.parts; ++part) {
      if (part == at.part) continue;
      const unsigned theirs = addressAt(mine, at.rank + (part - at.part) * blocks);
#pragma unroll
      for (int i = 0; i < 2 * kBoxes; ++i) {
        if (owns(at, i / 2)) addShared(sums_[i], theirs + i * kHalf);
      }
    }
  }

  __device__ Features loadFeatures(int feature) const {
    const auto both = [&](const auto* values) -> float2 {
      float2 value{};
      if (values && feature < work_.N) value.x = toFloat(values[feature]);
      if (values && feature + 8 < work_.N) value.y = toFloat(values[feature + 8]);
      return value;
    };
    return {both(static_cast<const T*>(work_.bias)), both(work_.column_sums),
            both(static_cast<const T*>(work_.residual_scale))};
  }

  // Asks for the tile's residual, where the tile before has left from.
  __device__ void requestResidual(int feature, int token) {
    namedBarrier(group_ + 1, kWarpgroup);  // nobody takes moments there any more
    if (in_group_ != 0) return;
    waitStoresRead<0>();
    barrierExpect(&barriers_.residual[group_], kTokens * kPanelRowBytes);
    copyBox(sharedAddress(out_), maps_.residual, feature, token, &barriers_.residual[group_]);
  }

  // Scale and shift of this thread's four tokens among the 16 of a box: a pair of each eight.
  __device__ void loadScales(float4 (&scales)[2], int first) const {
    const float2* const pair = scales_ + first + lane_ % 4 * 2;
    for (int i = 0; i < 2; ++i) scales[i] = *reinterpret_cast<const float4*>(pair + i * 8);
  }

  // Norms, bias, activation, residual; through shared memory, where a transposing store turns features back into
  // columns.
  template <typename Kind, typename Function>
  __device__ void finish(const Position& at, int feature, int token, const Features& of, Kind kind, Function activate) {
    const int row = lane_ / 16 * 8 + lane_ % 8, column = in_group_ / kWarpSize * 2 + lane_ / 8 % 2;
    const int warp_row = in_group_ / kWarpSize * 8;  // of a chunk: those whose moments this warp takes
    float2 sums[kChunks];
#pragma unroll
    for (int first = 0; first < kTokens; first += kChunk, ++chunk_) {
      const int boxes = min(kChunk, kTokens - first) / kBoxTokens;
      const int buffer = kind.residual ? first / kChunk : chunk_ % kBuffers;
      if (!kind.shares_tile || owns(at, first / kBoxTokens) || owns(at, first / kBoxTokens + boxes - 1)) {
#pragma unroll
        for (int box = 0; box < boxes; ++box) {
          unsigned char* const place = out_ + buffer * kChunkBytes + box * kBoxBytes + panelOffset(row, column);
          float value[4][2];
          float4 scales[2];
          if (kind.norms_input || kind.norms_residual) loadScales(scales, first + box * kBoxTokens);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float (&sum)[4] = sums_[first / 8 + box * 2 + i / 2];
            const float bias = i % 2 ? of.bias.y : of.bias.x, column_sum = i % 2 ? of.column_sum.y : of.column_sum.x;
            value[i][0] = sum[i % 2 * 2];
            value[i][1] = sum[i % 2 * 2 + 1];
            if (kind.norms_input) {
              const float4 scale = scales[i / 2];
              value[i][0] = fmaf(scale.x, value[i][0], scale.y * column_sum);
              value[i][1] = fmaf(scale.z, value[i][1], scale.w * column_sum);
            }
            value[i][0] = activate(value[i][0] + bias);
            value[i][1] = activate(value[i][1] + bias);
          }
          unsigned packed[4];
          if (kind.residual) {
            loadMatricesTransposed(packed, place);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float2 residual = unpackPair<T>(packed[i]);
              if (kind.norms_residual) {
                const float gamma = i % 2 ? of.residual_scale.y : of.residual_scale.x;
                residual.x = gamma * fmaf(scales[i / 2].x, residual.x, scales[i / 2].y);
                residual.y = gamma * fmaf(scales[i / 2].z, residual.y, scales[i / 2].w);
              }
              value[i][0] += residual.x;
              value[i][1] += residual.y;
            }
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) packed[i] = packPair<T>(value[i][0], value[i][1]);
          storeMatricesTransposed(packed, place);
        }
      }
      fenceSharedForWgmma();
      if (!kind.residual && in_group_ == 0) waitStoresRead<kBuffers - 2>();  // for the next chunk's buffer
      namedBarrier(group_ + 1, kWarpgroup);
      if (in_group_ == 0) {
#pragma unroll
        for (int box = 0; box < boxes; ++box) {
          if (kind.shares_tile && !owns(at, first / kBoxTokens + box)) continue;
          storeBox(maps_.y, sharedAddress(out_) + buffer * kChunkBytes + box * kBoxBytes, feature,
                   token + first + box * kBoxTokens);
        }
        commitStores();
      }
      if (kind.moments && first + warp_row < kTokens) {
        sums[first / kChunk] = sumsOfRows<T>(out_ + buffer * kChunkBytes, warp_row, lane_);
      }
    }
    if (kind.moments) storeMoments(at, feature, token, warp_row, sums);
  }

  // Of every chunk's 8 tokens from `row` on, which are this warp's; last of all, as fences for copies out wait for it.
  __device__ void storeMoments(const Position& at, int feature, int token, int row,
                               const float2 (&sums)[kChunks]) const {
    if (!isMomentsLane(lane_) || feature >= work_.N) return;
    float2* const out = work_.moments_out + int64_t{feature / kGroupFeatures} * work_.T;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int in_tile = chunk * kChunk + row + momentsToken(lane_);
      if (in_tile >= kTokens || token + in_tile >= work_.T || !owns(at, in_tile / kBoxTokens)) continue;
      out[token + in_tile] = momentsOf(sums[chunk], kGroupFeatures);
    }
  }

  __device__ void finish(const Position& at, int feature, int token, const Features& of) {
    const auto run = [&](auto kind, auto activate) { finish(at, feature, token, of, kind, activate); };
    const auto none = [](float x) { return x; };
    const auto erf = [](float x) { return gelu(x); };
    const bool norms_input = work_.normed == Normed::kInput, norms_residual = work_.normed == Normed::kResidual;
    const bool residual = work_.residual, moments = work_.moments_out != nullptr, shares_tile = work_.tile.parts > 1;
    if (moments || norms_residual) {  // without activation
      if (shares_tile || !residual || norms_input || !moments) {
        return run(AnyNormed{norms_input, residual, norms_residual, moments, shares_tile}, none);
      }
      if (norms_residual) return run(Known<false, true, true, true>(), none);
      return run(Known<false, true, false, true>(), none);
    }
    if (!shares_tile && !residual && work_.activation == Activation::kNone) {
      if (norms_input) return run(Known<true, false, false, false>(), none);
      return run(Known<false, false, false, false>(), none);
    }
    if (!shares_tile && !residual && work_.activation == Activation::kGelu) {
      if (norms_input) return run(Known<true, false, false, false>(), erf);
      return run(Known<false, false, false, false>(), erf);
    }
    const Any any{norms_input, residual, shares_tile};
    switch (work_.activation) {
      case Activation::kGelu:
        return run(any, erf);
      case Activation::kGeluTanh:
        return run(any, [](float x) { return geluTanh(x); });
      case Activation::kRelu:
        return run(any, [](float x) { return fmaxf(x, 0.f); });
      case Activation::kSilu:
        return run(any, [](float x) { return timesSigmoid(x, x); });
      case Activation::kNone:
        return run(any, none);
    }
  }

  const Work& work_;
  const Maps& maps_;
  Barriers& barriers_;
  const unsigned stages_;
  const int group_, in_group_, lane_;
  unsigned char* const out_;
  const float2* const scales_;  // of the tile's tokens, where something is normed
  Ring ring_;
  int chunk_ = 0, tile_ = 0;  // finished, of all tiles; tiles finished
  float sums_[kTokens / 8][4];
};

}  // namespace padfree
