// SPDX-License-Identifier: Apache-2.0
#include "linear/mma/menu.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/integers.h"

namespace padfree {
namespace {

constexpr int kSystemBytes = 1024;  // of shared memory, beside a block's own

// Stages of a tile's reduction.
int depthOf(const MmaShape& shape, const LinearParams& p) {
  return ceilDiv(p.K * (p.scale ? 1 : 2), shape.depth_bytes);
}

int64_t tilesOf(const MmaShape& shape, int T, int N) {
  return int64_t{ceilDiv(T, shape.tokens)} * ceilDiv(N, shape.features);
}

// A multiprocessor computes its tiles in rounds of as many blocks as it holds. `rate`, `tile_cycles` and
// `launch_cycles` are a least-squares fit to the relative times of the GEMMs of three encoders at T 128, 1403 and 4802.
double cyclesOf(const MmaTiling& tiling, const LinearParams& p, int T, const LinearDevice& device) {
  constexpr int kSharingCycles = 3000, kPartCycles = 400;  // of the last of the blocks that share a tile
  const MmaShape& shape = kMmaShapes[tiling.shape];
  const int room = device.shared_bytes / (mmaSharedBytes(shape, shape.stages) + kSystemBytes);
  const int at_once = std::max(std::min(shape.blocks, room), 1);
  const int64_t of_one = ceilDiv<int64_t>(tilesOf(shape, T, p.N) * tiling.parts, device.multiprocessors),
                rounds = ceilDiv<int64_t>(of_one, at_once);
  const double missing = static_cast<double>(rounds * at_once - of_one) * shape.alone;
  const double products = static_cast<double>(shape.tokens) * shape.features * p.K / (p.scale ? 2 : 1) / tiling.parts;
  return (static_cast<double>(of_one) + missing) * products / shape.rate +
         static_cast<double>(rounds) * shape.tile_cycles + shape.launch_cycles +
         (tiling.parts > 1 ? kSharingCycles + kPartCycles * tiling.parts : 0);
}

}  // namespace

int mmaStages(const MmaShape& shape, int64_t blocks, int64_t row_bytes, const LinearDevice& device) {
  constexpr int kMinDepth = 12;  // stages of a reduction
  if (row_bytes < kMinDepth * shape.depth_bytes) return shape.stages;
  const int64_t at_once = std::min<int64_t>(ceilDiv<int64_t>(blocks, device.multiprocessors), shape.blocks);
  for (const int stages : {shape.most_stages, shape.more_stages}) {
    if (at_once * (mmaSharedBytes(shape, stages) + kSystemBytes) <= device.shared_bytes) return stages;
  }
  return shape.stages;
}

MmaEpilogueKind mmaEpilogueKindOf(const LinearParams& p) {
  if (p.gated || p.rotary_features > 0) return MmaEpilogueKind::kPairs;
  const bool has_activation = p.activation != Activation::kNone;
  if (!has_activation && p.residual && p.moments && !p.x_moments) return MmaEpilogueKind::kInPlace;
  if (p.residual || p.moments || (p.y && (p.y_e4m3 || p.y_int8))) return MmaEpilogueKind::kAny;
  if (p.activation == Activation::kGelu) return MmaEpilogueKind::kGelu;
  return has_activation ? MmaEpilogueKind::kAny : MmaEpilogueKind::kPlain;
}

bool hasMmaTiling(const LinearParams& params, int T, const MmaTiling& tiling) {
  const MmaEpilogueKind kind = mmaEpilogueKindOf(params);
  if (!hasMmaShape(kind, tiling.shape, params.int8)) return false;
  if (tiling.parts == 1) return true;
  const MmaShape& shape = kMmaShapes[tiling.shape];
  if (!params.scratch || tiling.parts < 1 || tiling.parts > kMmaMaxParts || !maySplitMma(kind, tiling.shape))
    return false;
  const int depth = depthOf(shape, params);
  if (ceilDiv(depth, ceilDiv(depth, tiling.parts)) != tiling.parts) return false;  // a part would have nothing
  return tilesOf(shape, T, params.N) * (tiling.parts - 1) <= kMmaMaxSharingBlocks;
}

std::vector<MmaTiling> rankMmaTilings(const LinearParams& params, int T, const LinearDevice& device) {
  std::vector<std::pair<double, MmaTiling>> costs;
  for (int shape = 0; shape < kMmaShapeCount; ++shape) {
    std::pair<double, MmaTiling> shared{std::numeric_limits<double>::max(), {-1, 1}};
    for (int parts = 1; parts <= kMmaMaxParts; ++parts) {
      const MmaTiling tiling{shape, parts};
      if (!hasMmaTiling(params, T, tiling)) continue;
      if (parts > 1 && tilesOf(kMmaShapes[shape], T, params.N) * parts > device.multiprocessors) continue;
      const double cycles = cyclesOf(tiling, params, T, device);
      if (parts == 1) {
        costs.emplace_back(cycles, tiling);
      } else if (cycles < shared.first) {
        shared = {cycles, tiling};
      }
    }
    if (shared.second.shape >= 0) costs.push_back(shared);
  }
  std::sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<MmaTiling> tilings;
  for (const auto& [cycles, tiling] : costs) tilings.push_back(tiling);
  return tilings;
}

int64_t mmaTokensOfSameTime(const MmaTiling& tiling, int T, int N, const LinearDevice& device) {
  const MmaShape& tile = kMmaShapes[tiling.shape];
  const int64_t columns = int64_t{ceilDiv(N, tile.features)} * tiling.parts, rows = ceilDiv(T, tile.tokens);
  const int64_t of_one = ceilDiv<int64_t>(rows * columns, device.multiprocessors);
  return (of_one == 1 ? rows : of_one * device.multiprocessors / columns) * tile.tokens;
}

}  // namespace padfree
