// SPDX-License-Identifier: Apache-2.0
// How a block of the Hopper kernel is laid out: warpgroups, stages of shared memory, barriers.
#pragma once

#include "common/device.cuh"
#include "common/integers.h"
#include "common/panel.cuh"
#include "common/ptx/barriers.cuh"
#include "common/ptx/wgmma.cuh"
#include "linear/tiling.h"

namespace padfree {

constexpr int kGroups = 2;  // warpgroups that multiply, each its own features
constexpr int kWarps = kWarpgroup / kWarpSize;
constexpr int kGroupFeatures = kLinearFeatures / kGroups;
static_assert(kGroupFeatures == kMomentFeatures);  // a warpgroup takes the moments of its features
constexpr int kLinearThreads = (1 + kGroups) * kWarpgroup;
static_assert(kLinearDepth * 2 == kPanelRowBytes && kE4m3Depth == kPanelRowBytes);  // a stage is a panel's row deep
constexpr int kMaxStages = 10;
constexpr int kBoxTokens = 16;     // tokens that one copy stores
constexpr int kBuffers = 2;        // of a warpgroup where a tile is stored in chunks: one fills while one is stored
constexpr int kMinChunkBoxes = 4;  // a tile of at most this many boxes is one chunk; two such chunks always fit
constexpr int kScaleThreads = 2 * kWarpSize;  // that compute the scales of rows to be normed
constexpr int kLargeTokens =
    128;  // of tiles of which a block takes several, and whose first stages it fetches a few at a time:
constexpr int kPacedStages = 2;  // this many
constexpr int kBoxBytes = kBoxTokens * kPanelRowBytes;
constexpr int kMinOutBytes = kGroups * kBuffers * kMinChunkBoxes * kBoxBytes;

// Where results leave from.
enum class Out {
  kChunks,        // chunk after chunk, as many as the stages leave room for
  kNarrowChunks,  // the same, of half as many bytes: of half the features that are multiplied, or of e4m3
  kThinChunks,    // of half of the features, e4m3
  kTile,          // a buffer for all of a tile, to which its residual is fetched
  kBothTiles,     // the same, with one for e4m3 after it
  kStages         // the same in two stages of the ring, one for each warpgroup
};

constexpr bool leavesInChunks(Out out) {
  return out == Out::kChunks || out == Out::kNarrowChunks || out == Out::kThinChunks;
}
constexpr bool leavesFromTile(Out out) {
  return out == Out::kTile || out == Out::kBothTiles;
}
constexpr int boxBytes(Out out) {
  return out == Out::kNarrowChunks ? kBoxBytes / 2 : out == Out::kThinChunks ? kBoxBytes / 4 : kBoxBytes;
}

template <int kTileTokens>
struct Shape {
  static constexpr int kTokens = kTileTokens;
  static constexpr int kPanelBytes = kLinearDepth * kPanelRowBytes;  // 64 features
  static constexpr int kWeightBytes = kGroups * kPanelBytes;
  static constexpr int kInputBytes = kTokens * kPanelRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kScaleBytes = kTokens * sizeof(float2);
  static constexpr int kTileBytes = kGroups * kTokens * kPanelRowBytes;  // of results
  // Where e4m3 stands after a warpgroup's results in one stage, over its weights.
  static_assert(kTokens * kPanelRowBytes / 2 <= kWeightBytes);
  static constexpr int stagesBeside(int out_bytes) {
    const int fit = (kSharedLimit - out_bytes - kScaleBytes) / kStageBytes;
    return fit < kMaxStages ? fit : kMaxStages;
  }
  static constexpr int kBoxes = kTokens / kBoxTokens;
  static constexpr int kRoom = kSharedLimit - kScaleBytes - stagesBeside(kMinOutBytes) * kStageBytes;
  // Chunks are as few as leave room for two of them, and two where there is something to compute while one leaves.
  static constexpr int chunkBoxes(Out out) {
    const int fit = kRoom / (kGroups * kBuffers * boxBytes(out)), chunks = ceilDiv(kBoxes, fit);
    return kBoxes <= kMinChunkBoxes ? kBoxes : ceilDiv(kBoxes, chunks < 2 ? 2 : chunks);
  }
  static constexpr int outBytes(Out out) {
    switch (out) {
      case Out::kStages:
        return 0;
      case Out::kTile:
        return kTileBytes;
      case Out::kBothTiles:
        return kTileBytes + kTileBytes / 2;
      default:
        return kGroups * kBuffers * chunkBoxes(out) * boxBytes(out);
    }
  }
  // Boxes that are stored together: where it `pays`, half of a large tile that is stored from where it was summed,
  // while the other half is computed.
  static constexpr int boxesAtOnce(Out out, bool pays) {
    return leavesInChunks(out) ? chunkBoxes(out) : pays && kTokens >= kLargeTokens ? ceilDiv(kBoxes, 2) : kBoxes;
  }
  // The second argument is for ResidentShape, which depends on the stages of the reduction.
  static constexpr int stages(Out out, int) { return stagesBeside(outBytes(out)); }
  static constexpr int sharedBytes(Out out, int depth) {
    return stages(out, depth) * kStageBytes + outBytes(out) + kScaleBytes;
  }
};

// Where a tile's input stays in shared memory, all of its reduction, and only weights pass through the ring: tiles
// are the features of one warpgroup, and warpgroups take them in ping-pong.
template <int kTileTokens>
struct ResidentShape {
  static constexpr int kTokens = kTileTokens;
  static constexpr int kBoxes = kTokens / kBoxTokens;
  static constexpr int kStageBytes = kGroupFeatures * kPanelRowBytes;  // of weights
  static constexpr int kInputBytes = kTokens * kPanelRowBytes;         // of a stage's depth
  static constexpr int kScaleBytes = kTokens * sizeof(float2);
  static constexpr int chunkBoxes(Out out) { return boxBytes(out) == kBoxBytes ? 2 : 4; }
  static constexpr int boxesAtOnce(Out out, bool) { return chunkBoxes(out); }
  static constexpr int outBytes(Out out) { return kGroups * kBuffers * chunkBoxes(out) * boxBytes(out); }
  static constexpr int stages(Out out, int depth) {
    const int fit = (kSharedLimit - outBytes(out) - kScaleBytes - depth * kInputBytes) / kStageBytes;
    return fit < kMaxStages ? fit : kMaxStages;
  }
  static constexpr int sharedBytes(Out out, int depth) {
    return depth * kInputBytes + stages(out, depth) * kStageBytes + outBytes(out) + kScaleBytes;
  }
};
static_assert(ResidentShape<kLargeTokens>::outBytes(Out::kChunks) <= kMaxResidentOutBytes);

struct ScaleBarriers {
  uint64_t full, empty;
  __device__ void init() {
    barrierInit(&full, kScaleThreads);
    barrierInit(&empty, kGroups * kWarps);
  }
};
struct Barriers {
  uint64_t full[kMaxStages], empty[kMaxStages], residual[kGroups];
  ScaleBarriers scales;
};
struct ResidentBarriers {
  uint64_t full[kMaxStages], empty[kMaxStages], input_full[kMaxResidentDepth], input_empty[kMaxResidentDepth];
  ScaleBarriers scales;
};

// Index in the ring of stages, and the parity of the rounds.
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
  __device__ void skip(int count) {  // what another warpgroup takes
    for (stage += count; stage >= stages; stage -= stages) parity ^= 1;
  }
};

}  // namespace padfree
