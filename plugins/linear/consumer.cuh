// SPDX-License-Identifier: Apache-2.0
// A warpgroup of the Hopper kernel that multiplies: sums of its 64 features in registers, then bias, activation and
// residual on their way out.
#pragma once

#include "linear/activation.cuh"
#include "linear/cut.cuh"
#include "linear/wgmma.cuh"

namespace padfree {

template <typename T, int kTokens>
class Consumer {
  using S = Shape<kTokens>;

 public:
  __device__ Consumer(const Work& work, const Maps& maps, Barriers& barriers, unsigned stages, unsigned char* out)
      : work_(work),
        maps_(maps),
        barriers_(barriers),
        stages_(stages),
        group_(__shfl_sync(kFullMask, threadIdx.x / kWarpgroup, 0) - 1),
        in_group_(threadIdx.x % kWarpgroup),
        lane_(threadIdx.x % kWarpSize),
        out_(out + group_ * kBuffers * kChunkBytes) {}

  __device__ void run(const Position& at) {
    for (int cluster = at.first; cluster < work_.clusters; cluster += at.step) {
      const int feature = at.featureTile(work_, cluster) * kLinearFeatures + group_ * kGroupFeatures;
      const int token = at.tokenTile(work_, cluster) * kTokens;
      if (work_.residual && in_group_ == 0) requestFirstResiduals(at, feature, token);
      const float2 bias = loadBias(feature + in_group_ / kWarpSize * 16 + lane_ / 4);
      multiply(at);
      if (work_.tile.parts > 1) gather(at);
      finish(at, feature, token, bias);
    }
  }

 private:
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

  __device__ float2 loadBias(int feature) const {
    const T* bias = static_cast<const T*>(work_.bias);
    float2 value{};
    if (bias && feature < work_.N) value.x = toFloat(bias[feature]);
    if (bias && feature + 8 < work_.N) value.y = toFloat(bias[feature + 8]);
    return value;
  }

  // Asks for the residual of the tokens of a tile from `first` on, a chunk of them, in the buffer that they leave from.
  __device__ void requestResidual(const Position& at, int feature, int token, int first, int chunk) {
    const int buffer = chunk % kBuffers, begin = first / kBoxTokens;
    const int end = min(first + kChunk, kTokens) / kBoxTokens;
    int owned = 0;
    for (int box = begin; box < end; ++box) owned += owns(at, box);
    barrierExpect(&barriers_.residual[group_][buffer], owned * kBoxBytes);
    for (int box = begin; box < end; ++box) {
      if (!owns(at, box)) continue;
      copyBox(sharedAddress(out_) + buffer * kChunkBytes + (box - begin) * kBoxBytes, maps_.residual, feature,
              token + box * kBoxTokens, &barriers_.residual[group_][buffer]);
    }
  }

  // Those of the first chunks, while the products are computed.
  __device__ void requestFirstResiduals(const Position& at, int feature, int token) {
    waitStoresRead<kBuffers - kAhead>();
    for (int i = 0; i < kAhead && i * kChunk < kTokens; ++i) {
      requestResidual(at, feature, token, i * kChunk, chunk_ + i);
    }
  }

  // Bias, activation, residual; through shared memory, where a transposing store turns features back into columns.
  template <typename Function>
  __device__ void finish(const Position& at, int feature, int token, float2 bias, Function activate) {
    const int row = lane_ / 16 * 8 + lane_ % 8, column = in_group_ / kWarpSize * 2 + lane_ / 8 % 2;
#pragma unroll
    for (int first = 0; first < kTokens; first += kChunk, ++chunk_) {
      const int boxes = min(kChunk, kTokens - first) / kBoxTokens;
      const int buffer = chunk_ % kBuffers;
      if (work_.residual) barrierWait(&barriers_.residual[group_][buffer], chunk_ / kBuffers % 2);
      if (owns(at, first / kBoxTokens) || owns(at, first / kBoxTokens + boxes - 1)) {
#pragma unroll
        for (int box = 0; box < boxes; ++box) {
          unsigned char* const place = out_ + buffer * kChunkBytes + box * kBoxBytes + panelOffset(row, column);
          float value[4][2];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float (&sum)[4] = sums_[first / 8 + box * 2 + i / 2];
            const float added = i % 2 ? bias.y : bias.x;
            value[i][0] = activate(sum[i % 2 * 2] + added);
            value[i][1] = activate(sum[i % 2 * 2 + 1] + added);
          }
          unsigned packed[4];
          if (work_.residual) {
            loadMatricesTransposed(packed, place);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float2 residual = unpackPair<T>(packed[i]);
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
      if (in_group_ == 0) waitStoresRead<kBuffers - 2>();  // for the next chunk's buffer
      namedBarrier(group_ + 1, kWarpgroup);
      if (in_group_ == 0) {
#pragma unroll
        for (int box = 0; box < boxes; ++box) {
          if (!owns(at, first / kBoxTokens + box)) continue;
          storeBox(maps_.y, sharedAddress(out_) + buffer * kChunkBytes + box * kBoxBytes, feature,
                   token + first + box * kBoxTokens);
        }
        commitStores();
        if (work_.residual && first + kAhead * kChunk < kTokens) {
          waitStoresRead<kBuffers - kAhead>();
          requestResidual(at, feature, token, first + kAhead * kChunk, chunk_ + kAhead);
        }
      }
    }
  }

  __device__ void finish(const Position& at, int feature, int token, float2 bias) {
    switch (work_.activation) {
      case Activation::kGelu:
        return finish(at, feature, token, bias, [](float x) { return gelu(x); });
      case Activation::kGeluTanh:
        return finish(at, feature, token, bias, [](float x) { return geluTanh(x); });
      case Activation::kRelu:
        return finish(at, feature, token, bias, [](float x) { return fmaxf(x, 0.f); });
      case Activation::kSilu:
        return finish(at, feature, token, bias, [](float x) { return timesSigmoid(x, x); });
      case Activation::kNone:
        return finish(at, feature, token, bias, [](float x) { return x; });
    }
  }

  static constexpr int kAhead = kBuffers / 2;  // residual chunks under way
  const Work& work_;
  const Maps& maps_;
  Barriers& barriers_;
  const unsigned stages_;
  const int group_, in_group_, lane_;
  unsigned char* const out_;
  Ring<S::kStages> ring_;
  int chunk_ = 0;  // finished, of all tiles
  float sums_[kTokens / 8][4];
};

}  // namespace padfree
