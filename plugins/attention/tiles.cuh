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

// Sequence b owns the tile numbers from cu_seqlens[b] / kRows + b on. That leaves it room for ceil(length / kRows)
// tiles because floor(x + length) >= floor(x) + ceil(length) - 1, and lets every block find its sequence by a search
// over cu_seqlens alone. At most one number a sequence stays unused. Warp-collective.
template <int kRows>
__device__ inline QueryTile findQueryTile(const int* cu_seqlens, int B, int T, int tile) {
  const auto firstTile = [&](int b) { return sequenceStart(cu_seqlens, b, T) / kRows + b; };
  const int b = warpFindLast(B + 1, tile, firstTile);
  const int begin = sequenceStart(cu_seqlens, b, T);
  const int end = b < B ? max(sequenceStart(cu_seqlens, b + 1, T), begin) : T;
  const int first = (tile - firstTile(b)) * kRows;  // negative only if cu_seqlens falls somewhere
  const int rows = first < 0 ? 0 : min(kRows, end - begin - first);
  return {begin, end - begin, first, rows, b == B};
}

// Tile numbers that findQueryTile can be asked for, filler included.
inline unsigned countQueryTiles(int T, int B, int rows) {
  return static_cast<unsigned>(T / rows + B + 1);
}

}  // namespace padfree
