// SPDX-License-Identifier: Apache-2.0
// The softmax of rows that see few keys: 64 rows of a group, and the 192 keys around them at once.
#pragma once

#include "attention/sm90/positions.cuh"
#include "common/ptx/opaque.cuh"

namespace padfree {

constexpr int kNearBlocks = 3;  // of keys that a group sees at most: its own and their neighbours
constexpr int kNearKeyCount = kNearBlocks * kTaskRows;

// Row r of a group sees keys [r, r + 128] of the 192 at most. So a warp sees nine chunks of 16 keys, of which the first
// and the last have a diagonal in them. All warps see chunks 3 to 8. Of the three before these and the three after,
// warp w sees chunk c if w <= c, and the ninth after c otherwise: one index stands for both, and all warps have the
// same code. With code of their own they waited for instructions longer than for anything else
// (docs/notes/2026-11-27-windows-again.md).
template <typename N>
struct NearRows : Sm90Rows<N> {
  using Sm90Rows<N>::scores, Sm90Rows<N>::sum, Sm90Rows<N>::weights;
  static constexpr int kChunkKeys = 16;  // of an entry of weights
  static constexpr int kChunks = kNearKeyCount / kChunkKeys, kBlockChunks = kTaskRows / kChunkKeys;
  static constexpr int kAliasedChunks = kBlockChunks - 1,
                       kVisibleChunks = kChunks - kAliasedChunks;  // indices that stand for two chunks; all

  // Selects the chunks that this warp sees, and masks keys beyond the widest window and those of a block that does not
  // exist.
  __device__ void selectVisibleChunks(int warp, bool has_before) {
    const auto before = [](int distance) { return distance < 0; };
    const auto after = [](int distance) { return distance > 0; };
#pragma unroll
    for (int c = 0; c < kAliasedChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& score = scoreOf(c, i);
        score = warp > c ? scoreOf(c + kVisibleChunks, i) : has_before ? score : -INFINITY;
      }
      if (warp == c) mask(c, before);
      if (warp == c + 1) mask(c, after);
    }
    if (warp == kAliasedChunks) mask(kAliasedChunks, before);
    if (warp == 0) mask(kVisibleChunks - 1, after);
    if (!has_before) mask(kAliasedChunks, [](int) { return true; });
  }

  // Exponents are counted from the largest score of each row among the seen. Warp-collective.
  __device__ void findShift(float scale_log2) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      shift_[row] = Sm90Rows<N>::template peakOf<kVisibleChunks * kChunkKeys>(row) * scale_log2;
      sum[row] = 0.f;
    }
  }

  // Makes weights of the scores of chunks [kBegin, kEnd), and adds these to the sums over the keys of this lane.
  template <int kBegin, int kEnd>
  __device__ void computeChunkWeights(int warp, float scale_log2) {
#pragma unroll
    for (int c = kBegin; c < kEnd; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i % 2;
        const float x = exp2Fast(fmaf(scoreOf(c, i * 2), scale_log2, -shift_[row]));
        const float y = exp2Fast(fmaf(scoreOf(c, i * 2 + 1), scale_log2, -shift_[row]));
        sum[row] += x + y;
        const unsigned both = packPair<typename N::T>(x, y);
        weights[c][i] = c < kAliasedChunks && warp > c ? 0 : both;
        if (c < kAliasedChunks) weights[c + kVisibleChunks][i] = warp > c ? both : 0;
      }
    }
    // Otherwise the compiler would compute them late, right before each product that needs them.
#pragma unroll
    for (int c = kBegin; c < kEnd; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        makeOpaque(weights[c][i]);
        if (c < kAliasedChunks) makeOpaque(weights[c + kVisibleChunks][i]);
      }
    }
  }

 private:
  __device__ float& scoreOf(int chunk, int i) { return scores[chunk * 2 + i / 4][i % 4]; }

  // Masks keys by their distance from the diagonal of a chunk.
  template <typename IsMasked>
  __device__ void mask(int chunk, const IsMasked& isMasked) {
    const int offset = laneDistance(0);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (isMasked(offset + elementOffset(i / 4, i % 4))) scoreOf(chunk, i) = -INFINITY;
    }
  }

  float shift_[2];
};

}  // namespace padfree
