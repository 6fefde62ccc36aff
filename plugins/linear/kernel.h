// SPDX-License-Identifier: Apache-2.0
// The kernel behind launchLinear and how a product is cut up for it.
#pragma once

#include "linear/launch.h"

namespace padfree {

// A block computes kLinearFeatures features of `tokens` tokens at a time; blocks of a cluster take neighbouring tiles
// and fetch what they share once.
struct LinearTile {
  int tokens;            // a multiple of 16, at most kMaxLinearTokens
  int cluster_features;  // tiles of features side by side in a cluster: 1 or 2
  int cluster_tokens;    // tiles of tokens: 1 or 2
};

constexpr int kLinearFeatures = 128;
constexpr int kMaxLinearTokens = 256;

// The cut that should be fastest for these sizes on this many multiprocessors.
LinearTile chooseLinearTile(int T, int K, int N, int multiprocessors);

cudaError_t launchLinearSm90(const LinearParams& params, const LinearTile& tile, cudaStream_t stream);

}  // namespace padfree
