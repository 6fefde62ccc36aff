// SPDX-License-Identifier: Apache-2.0
// Which tiles a call of the kernels on mma.sync takes, for the host. Chosen on an H200.
#pragma once

#include <cstdint>

#include "attention/kernels.h"

namespace padfree {

// The length that the build expects, or else the mean.
inline int expectedLength(const AttentionParams& params) {
  return params.max_seq_len > 0 ? params.max_seq_len : params.T / (params.B > 0 ? params.B : 1);
}

// Tiles of 128 query rows read K and V half as often, but leave more of themselves empty at the end of each sequence,
// and leave multiprocessors idle if they are few. Rows that see few keys gain less.
inline bool wantsTallTiles(const AttentionParams& params) {
  constexpr int kTallRows = 128, kTilesToFillTheChip = 256;
  const bool plain = !hasPositions(params);
  const int long_sequence = plain && params.D > 64 && params.D <= 128 ? 256 : 512;
  return expectedLength(params) > long_sequence &&
         static_cast<int64_t>(params.T / kTallRows) * params.H >= kTilesToFillTheChip;
}

// Whether tall tiles of heads of up to 128 have two buffers for K and V. On an H200 those with one, whose blocks ask
// the L2 cache for keys and values first, were faster with heads of 112, and where rows see all keys of long sequences.
inline bool wantsRing(const AttentionParams& params) {
  constexpr int kLong = 1024;
  return params.D == 128 && (hasPositions(params) || expectedLength(params) <= kLong);
}

}  // namespace padfree
