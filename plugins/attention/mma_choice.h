// SPDX-License-Identifier: Apache-2.0
// Which tiles a call of the kernels on mma.sync takes, for the host. Chosen on an H200.
#pragma once

#include <cstdint>

#include "attention/kernels.h"
#include "common/integers.h"

namespace padfree {

// The length that the build expects, or else the mean.
inline int expectedLength(const AttentionParams& params) {
  return params.max_seq_len > 0 ? params.max_seq_len : params.T / (params.B > 0 ? params.B : 1);
}

constexpr int kTallRows = 128, kOrdinaryRows = 64;

// Whether sequences that are all about as long fill tall tiles, and those occupy multiprocessors nearly as well as
// ordinary tiles, of whose rows each takes 10 % longer. A third tile, alone on its multiprocessor, takes too long.
// Measured with heads of 65 to 128.
inline bool fillsTallTiles(const AttentionParams& params, int multiprocessors) {
  const int64_t longest = params.max_seq_len, sequences = static_cast<int64_t>(params.B) * params.H;
  if (longest <= 0 || 20 * static_cast<int64_t>(params.T) < 19 * params.B * longest) return false;
  const auto perMultiprocessor = [&](int64_t rows) {
    return ceilDiv(sequences * ceilDiv(longest, rows), static_cast<int64_t>(multiprocessors));
  };
  const int64_t tall = perMultiprocessor(kTallRows);
  return tall * kTallRows * 10 <= perMultiprocessor(kOrdinaryRows) * kOrdinaryRows * 11 && tall != 3;
}

// Tiles of 128 query rows read K and V half as often, but leave more of themselves empty at the end of each sequence,
// and leave multiprocessors idle if they are few. Rows that see few keys gain less.
inline bool wantsTallTiles(const AttentionParams& params, int multiprocessors) {
  constexpr int kTilesToFillTheChip = 256;
  const bool large = !hasPositions(params) && params.D > 64 && params.D <= 128;
  if (large && fillsTallTiles(params, multiprocessors)) return true;
  return expectedLength(params) > (large ? 256 : 512) &&
         static_cast<int64_t>(params.T / kTallRows) * params.H >= kTilesToFillTheChip;
}

// Whether tall tiles make the scores of the next step beside the exponentials of this one.
inline bool wantsScoresAhead(const AttentionParams& params) {
  constexpr int kLong = 512;
  if (hasPositions(params)) return false;
  return params.D == 128 || (params.D > 64 && params.D <= 96 && expectedLength(params) <= kLong);
}

// Whether the other tall tiles of heads of 97 to 128 have two buffers for K and V. On an H200 those with one, whose
// blocks ask the L2 cache for keys and values first, were faster with heads of 112.
inline bool wantsRing(const AttentionParams& params) {
  return params.D == 128;
}

// Whether tiles of longer sequences come first. It balances the load, but finding a tile takes longer, and tiles
// that run at the same time are less often neighbours in memory.
inline bool wantsLongestFirst(const AttentionParams& params, bool tall) {
  constexpr int kFewTokens = 128;
  if (params.B > kMaxOrdered) return false;
  const bool causal = params.window_right == 0;
  if (params.D > 128) return tall || !causal;
  if (params.D > 64 && params.B == 1) return tall || params.T > kFewTokens;
  if (params.D > 64) return tall || (params.D <= 96 && !hasPositions(params));
  return tall ? causal : params.B > 1;
}

// Whether the tiles of a sequence stand next to each other, in batches whose tiles are not ordered by length. Otherwise
// the first tile of each comes after all others, which needs no search and balances the load of short ones.
inline bool wantsTilesInOrder(const AttentionParams& params, bool tall) {
  if (params.B <= kMaxOrdered) return false;
  const int short_sequence = params.D > 128 ? 32 : params.D > 64 ? 64 : 256;
  return tall || (params.window_right != 0 && expectedLength(params) > short_sequence);
}

}  // namespace padfree
