// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/integers.h"
#include "linear/mma/menu.h"
#include "linear/row_scale.cuh"

namespace padfree {

// What a kernel is launched with.
struct MmaWork : LinearParams {
  const float2* moments_in;  // of what is normed, or null
  int groups_in, token_tiles, feature_tiles, stages, parts;
  float per_group, epsilon, per_y_scale;
  int shared_tiles;  // by blocks of several parts, the first of all
};

inline MmaWork makeMmaWork(const LinearParams& params, const MmaTiling& tiling, const MmaCut& cut) {
  const MmaShape& tile = kMmaShapes[tiling.shape];
  MmaWork work{};
  static_cast<LinearParams&>(work) = params;
  setNorm(work, params);
  work.token_tiles = ceilDiv(params.T, tile.tokens);
  work.feature_tiles = ceilDiv(params.N, tile.features);
  work.parts = cut.parts;
  work.shared_tiles = static_cast<int>(cut.shared);
  work.per_y_scale = params.y_e4m3 ? 1.f / params.y_scale : 1.f;
  return work;
}

}  // namespace padfree
