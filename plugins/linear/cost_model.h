// SPDX-License-Identifier: Apache-2.0
// What tilings cost on a GPU, without measuring.
#pragma once

#include <vector>

#include "linear/tiling.h"

namespace padfree {

// Whether so many tokens draw all the power that a GPU may have, so that its clock falls.
constexpr int kMinHotTokens = 1024;
constexpr bool isHot(int T) {
  return T >= kMinHotTokens;
}

// All tilings that the kernel could be compiled for (tiling.cpp).
const std::vector<LinearTiling>& linearTilings();

// All tilings, the fastest first by the cost model, for T tokens on this many multiprocessors.
std::vector<LinearTiling> rankLinearTilings(const LinearParams& params, int T, int multiprocessors);

// The first of these for params.T tokens.
LinearTiling cheapestLinearTiling(const LinearParams& params, int multiprocessors);

// How many waves of clusters a tiling takes, and the most tokens that so many waves compute: fewer tokens in as many
// waves take as long, except for their traffic.
int linearWaves(const LinearTiling& tiling, int T, int N, int multiprocessors);
int linearTokens(const LinearTiling& tiling, int waves, int N, int multiprocessors);

// The same for whatever kernels run on a device: the choices of a GEMM of T tokens, the fastest first, and the most
// tokens that take as long with a choice as T: on a hot Hopper, where a wave that is half empty takes less power, those
// that fill the last tiles.
std::vector<LinearChoice> rankLinearChoices(const LinearParams& params, int T, const LinearDevice& device);
int64_t tokensOfSameTime(LinearChoice choice, int T, int N, const LinearDevice& device);

// What a build measures for T tokens: the first five, what is among them that is measured (isMeasuredMma), and of many
// tokens on a Hopper also the one that tensor cores take the least time for. At its power limit the GPU lowers the
// clock of the multiprocessors, and loads hold them up less.
std::vector<LinearChoice> linearCandidates(const LinearParams& params, int T, const LinearDevice& device);

}  // namespace padfree
