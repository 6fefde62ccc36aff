// SPDX-License-Identifier: Apache-2.0
// How a block divides a tile of tokens and features among its warps, and what it holds in shared memory.
#pragma once

#include <cuda_runtime.h>

#include "common/device.cuh"
#include "linear/mma/menu.h"

namespace padfree {

constexpr int kMmaStepBytes = 32;  // that mma.sync takes of a row

// A tile of the menu, as constants.
template <int kNumber>
struct MmaTile {
  static constexpr int kIndex = kNumber;
  static constexpr MmaShape kShape = kMmaShapes[kIndex];
  static constexpr int kTokens = kShape.tokens, kFeatures = kShape.features, kWarpTokens = kShape.warp_tokens;
  static constexpr int kSlices = kShape.slices, kDepthBytes = kShape.depth_bytes;
  static constexpr int kStages = kShape.stages, kMoreStages = kShape.more_stages, kMostStages = kShape.most_stages;
  static constexpr int kBound = kShape.bound;
  static constexpr int kWarpColumns = kFeatures / kMmaWarpFeatures, kWarpRows = kTokens / kWarpTokens;
  static constexpr int kWarps = kWarpColumns * kWarpRows * kSlices, kThreads = kWarps * kWarpSize;
  static constexpr int kSteps = kDepthBytes / kMmaStepBytes / kSlices;                          // of a warp in a stage
  static constexpr int kTokenBlocks = kWarpTokens / 16, kFeaturePairs = kMmaWarpFeatures / 16;  // of mma.sync
  static constexpr int kInputBytes = kTokens * kDepthBytes, kWeightBytes = kFeatures * kDepthBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kScaleBytes = kTokens * 2 * sizeof(float);  // the stages come after the scales
  static_assert(kTokens % kWarpTokens == 0 && kFeatures % kMmaWarpFeatures == 0);
  static_assert(kSteps >= 2 && kSteps % 2 == 0);                     // two sets of fragments take turns
  static_assert(mmaSharedBytes(kShape, kStages) <= 99 * 1024);       // of a block on sm_86, sm_89 and sm_120
  static_assert(mmaSharedBytes(kShape, kMostStages) <= 163 * 1024);  // on sm_80
  static_assert(kScaleBytes % 128 == 0);                             // the stages' banks

  // Rows of a stage's kDepthBytes bytes, whose chunks of 16 bytes are permuted so that eight rows are in banks of their
  // own. Rows that are a multiple of 16 apart are permuted alike.
  static __device__ int swizzle(int row) { return kDepthBytes == 64 ? row >> 1 & 3 : row & 7; }
  static __device__ int rowOffset(int row, int chunk) {
    return row * kDepthBytes + ((chunk ^ swizzle(row)) * kVectorBytes);
  }
};

// Where a warp's part of a tile begins.
template <typename Tile>
struct MmaWarp {
  int token, feature, slice, lane;

  static __device__ MmaWarp ofThread() {
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int slice = warp / (Tile::kWarpColumns * Tile::kWarpRows),
              part = warp % (Tile::kWarpColumns * Tile::kWarpRows);
    return {part / Tile::kWarpColumns * Tile::kWarpTokens, part % Tile::kWarpColumns * kMmaWarpFeatures, slice, lane};
  }
};

}  // namespace padfree
