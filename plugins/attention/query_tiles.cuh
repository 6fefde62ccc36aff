// SPDX-License-Identifier: Apache-2.0
// How query tiles are numbered, without a list of them and without lengths on the host.
#pragma once

#include "attention/kernels.h"
#include "common/device.cuh"
#include "common/launch.h"

namespace padfree {

// A block of query rows: rows [first, first + rows) of the sequence whose tokens are [begin, begin + length). Tokens
// after the last sequence form a sequence of their own, marked filler. rows <= 0: nothing to do.
struct QueryTile {
  int begin, length, first, rows;
  bool filler;
  int sequence;  // its number, B for filler
};

// Tiles of `tile_rows` rows. The first one of sequence b is number T / tile_rows + b. Its other tiles are the numbers
// in [cu_seqlens[b] / tile_rows, cu_seqlens[b + 1] / tile_rows): enough of them, because floor(x + length) >= floor(x)
// + ceil(length) - 1. So no list of tiles is needed, no search where sequences are short, and the tiles of long
// sequences come first. At most one number per sequence stays unused. Warp-collective.
__device__ inline QueryTile findQueryTile(const int* cu_seqlens, int B, int T, int tile, int tile_rows) {
  const int later = T / tile_rows;
  const auto firstLater = [&](int b) { return sequenceStart(cu_seqlens, b, T) / tile_rows; };
  const int b = tile < later ? warpFindLast(B + 1, tile, firstLater) : tile - later;
  const int begin = sequenceStart(cu_seqlens, b, T);
  const int end = b < B ? max(sequenceStart(cu_seqlens, b + 1, T), begin) : T;
  const int first =
      tile < later ? (tile - begin / tile_rows + 1) * tile_rows : 0;  // negative only if cu_seqlens decreases
  const int rows = first < 0 ? 0 : min(tile_rows, end - begin - first);
  return {begin, end - begin, first, rows, b == B, b};
}

// The same where the number is known when compiling: cheaper divisions.
template <int kRows>
__device__ inline QueryTile findQueryTile(const int* cu_seqlens, int B, int T, int tile) {
  return findQueryTile(cu_seqlens, B, T, tile, kRows);
}

static_assert(kMaxOrdered == kWarpSize - 1, "a lane for each sequence that findLongestQueryTile orders, and filler's");

// The same tiles in another order, those of longer sequences first, where B <= kMaxOrdered: every lane counts the tiles
// that come before those of its sequence. kAtOnce: sequences that are counted without a branch; all, unless it is
// given. Warp-collective.
template <int kRows, int kAtOnce = kWarpSize>
__device__ inline QueryTile findLongestQueryTile(const int* cu_seqlens, int B, int T, int tile) {
  const int lane = threadIdx.x % kWarpSize;
  const int begin = sequenceStart(cu_seqlens, min(lane, B), T);
  const int end = lane < B ? max(sequenceStart(cu_seqlens, lane + 1, T), begin) : T;
  const int length = lane <= B ? end - begin : 0, tiles = ceilDiv(length, kRows);
  const int order = lane < B ? tiles : -1;  // filler comes last
  int before = 0;
  for (int i = 0; i < (kAtOnce < kWarpSize ? B : kWarpSize); i += kAtOnce) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int other = __shfl_sync(kFullMask, order, i + j);
      if (other > order || (other == order && i + j < lane)) before += other;
    }
  }
  const unsigned owners = __ballot_sync(kFullMask, lane <= B && tile >= before && tile < before + tiles);
  if (!owners) return {};
  const int sequence = __ffs(owners) - 1;
  const int first = (tile - __shfl_sync(kFullMask, before, sequence)) * kRows;
  const int tile_length = __shfl_sync(kFullMask, length, sequence);
  return {__shfl_sync(kFullMask, begin, sequence), tile_length,   first,
          min(kRows, tile_length - first),         sequence == B, sequence};
}

// The tile that is as far from the last of its sequence as this one is from the first; filler stays.
template <int kRows>
__device__ inline void countFromLast(QueryTile& tile) {
  if (tile.filler || tile.rows <= 0) return;
  tile.first = (tile.length - 1) / kRows * kRows - tile.first;
  tile.rows = min(kRows, tile.length - tile.first);
}

// findQueryTile or, with `longest_first`, findLongestQueryTile. There the last tile of a sequence comes before its
// others if rows see no later keys (`causal`): it has the most.
template <int kRows>
__device__ inline QueryTile findQueryTile(const int* cu_seqlens, int B, int T, int tile, bool longest_first,
                                          bool causal) {
  if (!longest_first) return findQueryTile<kRows>(cu_seqlens, B, T, tile);
  QueryTile found = findLongestQueryTile<kRows>(cu_seqlens, B, T, tile);
  if (causal) countFromLast<kRows>(found);
  return found;
}

// Tile numbers that findQueryTile can be asked for, filler included.
inline unsigned countQueryTiles(int T, int B, int rows) {
  return static_cast<unsigned>(T / rows) + static_cast<unsigned>(B) + 1;
}

}  // namespace padfree
