// SPDX-License-Identifier: Apache-2.0
// How the blocks of the kernels on mma.sync share the work of a call, in few instructions: where sequences are short, a
// warp executes about as many before and after its products as between them.
#pragma once

#include <cuda_runtime.h>

#include "attention/launch.h"
#include "attention/query_tiles.cuh"

namespace padfree {

// Blocks that start together read whole rows of one sequence: heads are the dimension of the grid that counts first.
// They share it with tiles only where those are too many for a dimension of their own, at the price of divisions.
inline dim3 tileGrid(const AttentionParams& params, int rows) {
  constexpr unsigned kMaxGridY = 65535;
  const unsigned tiles = countQueryTiles(params.T, params.B, rows);
  return tiles <= kMaxGridY ? dim3(params.H, tiles) : dim3(params.H * tiles);
}

// The head and the number of the tile of a block in this grid.
struct BlockWork {
  int head, tile;
};
__device__ inline BlockWork blockWork(const AttentionParams& p) {
  if (gridDim.y > 1) return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y)};
  return {static_cast<int>(blockIdx.x % p.H), static_cast<int>(blockIdx.x / p.H)};
}

// As warpFindLast, in one pass where the result is near `guess`. Warp-collective.
template <class Key>
__device__ inline int findLastNear(int guess, int n, int value, const Key& key) {
  const int first = max(min(guess - kWarpSize / 2, n - kWarpSize), 0), i = first + threadIdx.x % kWarpSize;
  const int below = __popc(__ballot_sync(kFullMask, i < n && key(i) <= value));
  if (below > 0 && (below < kWarpSize || first + kWarpSize >= n)) return first + below - 1;
  return warpFindLast(n, value, key);
}

// The tiles of findQueryTile with those of a sequence next to each other, so that they find its keys and values in the
// L2 cache: tile i of sequence b is number cu_seqlens[b] / kRows + b + i. Warp-collective.
template <int kRows>
__device__ inline QueryTile findTileInOrder(const AttentionParams& p, int tile) {
  const auto number = [&](int b) { return sequenceStart(p.cu_seqlens, b, p.T) / kRows + b; };
  const float share = __fdividef(static_cast<float>(tile), static_cast<float>(p.T / kRows + p.B));
  const int b = findLastNear(static_cast<int>(share * static_cast<float>(p.B)), p.B + 1, tile, number);
  const int begin = sequenceStart(p.cu_seqlens, b, p.T);
  const int end = b < p.B ? max(sequenceStart(p.cu_seqlens, b + 1, p.T), begin) : p.T;
  const int first = (tile - begin / kRows - b) * kRows;  // negative only if cu_seqlens decreases
  return {begin, end - begin, first, first < 0 ? 0 : min(kRows, end - begin - first), b == p.B, b};
}

// As findQueryTile with longest_first and causal; a batch of one sequence takes no search. Warp-collective.
template <int kRows>
__device__ inline QueryTile findTile(const AttentionParams& p, int tile) {
  if (p.B != 1) {
    if (p.in_order) return findTileInOrder<kRows>(p, tile);
    if (!p.longest_first) return findQueryTile<kRows>(p.cu_seqlens, p.B, p.T, tile);
    QueryTile found = findLongestQueryTile<kRows, 4>(p.cu_seqlens, p.B, p.T, tile);
    if (p.window_right == 0) countFromLast<kRows>(found);
    return found;
  }
  const int begin = sequenceStart(p.cu_seqlens, 0, p.T), end = max(sequenceStart(p.cu_seqlens, 1, p.T), begin);
  const int tiles = ceilDiv(end - begin, kRows);
  if (tile < tiles) {
    const int first = (p.window_right == 0 && p.longest_first ? tiles - 1 - tile : tile) * kRows;
    return {begin, end - begin, first, min(kRows, end - begin - first), false, 0};
  }
  const int first = (tile - tiles) * kRows;
  return {end, p.T - end, first, min(kRows, p.T - end - first), true, 1};
}

// The same as the shape wants it (S::kBrief: in few instructions).
template <class S>
__device__ inline BlockWork workOf(const AttentionParams& p) {
  if constexpr (S::kBrief) return blockWork(p);
  return {static_cast<int>(blockIdx.x % p.H), static_cast<int>(blockIdx.x / p.H)};
}

template <class S>
__device__ inline QueryTile tileOf(const AttentionParams& p, int tile) {
  if constexpr (S::kBrief) return findTile<S::kRows>(p, tile);
  return findQueryTile<S::kRows>(p.cu_seqlens, p.B, p.T, tile, p.longest_first, p.window_right == 0);
}

// The number that a tile has instead: from turned_tile on, tiles come in the opposite order, the unused numbers first,
// so that a multiprocessor with two blocks has a long tile and a short one. turned_sum: of a tile's two numbers.
__device__ inline int turnTile(const AttentionParams& p, int tile) {
  return tile < p.turned_tile ? tile : p.turned_sum - tile;
}

// Makes turnTile turn the second half of the blocks of a call where multiprocessors hold two each and, as about half a
// number per sequence stays unused, all at once.
inline void turnSecondBlocks(AttentionParams& params, int rows, int multiprocessors) {
  const int tiles = static_cast<int>(countQueryTiles(params.T, params.B, rows)), first = multiprocessors / params.H;
  if (!params.longest_first || params.B == 1 || tiles - params.B / 2 > 2 * first) return;
  params.turned_tile = first;
  params.turned_sum = first + tiles - 1;
}

}  // namespace padfree
