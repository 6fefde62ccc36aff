// SPDX-License-Identifier: Apache-2.0
// How query tiles are numbered without any list of them and without the host knowing a length.
#pragma once

#include "common/device.cuh"
#include "common/launch.h"

namespace padfree {

// A block of query rows: rows [first, first + rows) of the sequence whose tokens are [begin, begin + length). Tokens
// behind the last sequence form a sequence of their own, marked filler. rows <= 0: nothing to do.
struct QueryTile {
  int begin, length, first, rows;
  bool filler;
};

// The first tile of sequence b is number T / kRows + b. Its other tiles are the numbers in
// [cu_seqlens[b] / kRows, cu_seqlens[b + 1] / kRows): enough of them, because floor(x + length) >= floor(x) +
// ceil(length) - 1. So no list of tiles is needed, no search where sequences are short, and the tiles of long sequences
// come first. At most one number a sequence stays unused. Warp-collective.
template <int kRows>
__device__ inline QueryTile findQueryTile(const int* cu_seqlens, int B, int T, int tile) {
  const int later = T / kRows;
  const auto firstLater = [&](int b) { return sequenceStart(cu_seqlens, b, T) / kRows; };
  const int b = tile < later ? warpFindLast(B + 1, tile, firstLater) : tile - later;
  const int begin = sequenceStart(cu_seqlens, b, T);
  const int end = b < B ? max(sequenceStart(cu_seqlens, b + 1, T), begin) : T;
  const int first = tile < later ? (tile - begin / kRows + 1) * kRows : 0;  // negative only if cu_seqlens falls
  const int rows = first < 0 ? 0 : min(kRows, end - begin - first);
  return {begin, end - begin, first, rows, b == B};
}

// Tile numbers that findQueryTile can be asked for, filler included.
inline unsigned countQueryTiles(int T, int B, int rows) {
  return static_cast<unsigned>(T / rows) + static_cast<unsigned>(B) + 1;
}

}  // namespace padfree
