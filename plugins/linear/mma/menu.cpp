// SPDX-License-Identifier: Apache-2.0
#include "linear/mma/menu.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/integers.h"

namespace padfree {
namespace {

constexpr int kSystemBytes = 1024;  // of shared memory, beside a block's own
constexpr int kMostTailWaves = 4;   // of more the last counts little

// Stages of a tile's reduction.
int depthOf(const MmaShape& shape, const LinearParams& p) {
  return ceilDiv(p.K * (p.scale ? 1 : 2), shape.depth_bytes);
}

int64_t tilesOf(const MmaShape& shape, int T, int N) {
  return int64_t{ceilDiv(T, shape.tokens)} * ceilDiv(N, shape.features);
}

int blocksAtOnce(const MmaShape& shape, const LinearDevice& device) {
  const int room = device.shared_bytes / (mmaSharedBytes(shape, shape.stages) + kSystemBytes);
  return std::max(std::min(shape.blocks, room), 1);
}

// Whether no part of a reduction of `depth` stages would have nothing.
bool isFilled(int depth, int parts) {
  return ceilDiv(depth, ceilDiv(depth, parts)) == parts;
}

// A multiprocessor computes its tiles in rounds of as many blocks as it holds. `rate`, `tile_cycles` and
// `launch_cycles` are a least-squares fit to the relative times of the GEMMs of three encoders at T 128, 1403 and 4802.
double cyclesOf(const MmaTiling& tiling, const LinearParams& p, int T, const LinearDevice& device) {
  constexpr int kSharingCycles = 3000, kPartCycles = 400;  // of the last of the blocks that share a tile
  const MmaShape& shape = kMmaShapes[tiling.shape];
  const int at_once = blocksAtOnce(shape, device);
  const int64_t of_one = ceilDiv<int64_t>(tilesOf(shape, T, p.N) * tiling.parts, device.multiprocessors),
                rounds = ceilDiv<int64_t>(of_one, at_once);
  const double missing = static_cast<double>(rounds * at_once - of_one) * shape.alone;
  const double products = static_cast<double>(shape.tokens) * shape.features * p.K / (p.scale ? 2 : 1) / tiling.parts;
  return (static_cast<double>(of_one) + missing) * products / shape.rate +
         static_cast<double>(rounds) * shape.tile_cycles + shape.launch_cycles +
         (tiling.parts > 1 ? kSharingCycles + kPartCycles * tiling.parts : 0);
}

// The same with a tail. Sums of a part leave and come back at as many bytes per cycle as a multiprocessor fetches.
double tailCyclesOf(const MmaShape& shape, const MmaCut& cut, const LinearParams& p, int T,
                    const LinearDevice& device) {
  constexpr int kSharingCycles = 3000, kBytesPerCycle = 34;
  const int at_once = blocksAtOnce(shape, device);
  const int64_t whole = ceilDiv<int64_t>(tilesOf(shape, T, p.N) - cut.shared, device.multiprocessors),
                parts = ceilDiv<int64_t>(cut.shared * cut.parts, device.multiprocessors);
  const double of_one = static_cast<double>(whole) + static_cast<double>(parts) / cut.parts;
  const int64_t tiles = whole + ceilDiv<int64_t>(parts, cut.parts), rounds = ceilDiv<int64_t>(tiles, at_once);
  const double missing = static_cast<double>(rounds * at_once - tiles) * shape.alone;
  const double size = static_cast<double>(shape.tokens) * shape.features;
  return (of_one + missing) * size * p.K / shape.rate + static_cast<double>(rounds) * shape.tile_cycles +
         shape.launch_cycles + kSharingCycles + cut.parts * size * sizeof(float) / kBytesPerCycle;
}

using MmaCost = std::pair<double, MmaTiling>;  // in cycles

bool isCheaperMma(const MmaCost& a, const MmaCost& b) {
  return a.first < b.first;
}

// The cheapest cut with a tail: what is left over after as many whole tiles as all multiprocessors have, or one less.
std::pair<double, MmaCut> tailOf(const MmaShape& shape, const LinearParams& p, int T, const LinearDevice& device) {
  const int64_t tiles = tilesOf(shape, T, p.N);
  const int depth = depthOf(shape, p);
  std::pair<double, MmaCut> best{std::numeric_limits<double>::max(), {tiles, 1}};
  for (int64_t shared = tiles % device.multiprocessors; shared <= tiles && shared < 2 * device.multiprocessors;
       shared += device.multiprocessors) {
    for (int parts = 2; parts <= kMmaMaxParts && shared * (parts - 1) <= kMmaMaxTailBlocks; ++parts) {
      if (shared == 0 || !isFilled(depth, parts)) continue;
      const MmaCut cut{shared, parts};
      const double cycles = tailCyclesOf(shape, cut, p, T, device);
      if (cycles < best.first) best = {cycles, cut};
    }
  }
  return best;
}

// Whether there are kernels in which such tiles are a tail, and scratch memory.
bool mayHaveTail(const LinearParams& p, int shape) {
  return p.scratch && hasMmaShape(mmaEpilogueKindOf(p), shape, p.int8) &&
         mayBeMmaTail(mmaEpilogueKindOf(p), shape, p.scale != nullptr);
}

// Whether there are kernels that add the products of such tiles in fp16.
bool mayHaveFp16Sums([[maybe_unused]] const LinearParams& p, [[maybe_unused]] int shape) {
#ifdef PADFREE_FP16_SUMS
  return !p.scale && p.type == DataType::kFloat16 && hasMmaFp16Sums(mmaEpilogueKindOf(p), shape);
#else
  return false;
#endif
}

// Adds tiles with sums in fp16, on GPUs of 100 KB of shared memory: 8.6, 8.9 and 12.x, of which some take half the time
// for that. They come second: the model knows of no such GPU.
void addFp16Sums(std::vector<MmaCost>& costs, const LinearParams& p, const LinearDevice& device) {
  constexpr int kSharedBytes = 100 * 1024;
  if (device.shared_bytes > kSharedBytes) return;
  const double best = std::min_element(costs.begin(), costs.end(), isCheaperMma)->first;
  const size_t count = costs.size();
  for (size_t i = 0; i < count; ++i) {
    const auto [cycles, tiling] = costs[i];
    if (tiling.parts == 1 && mayHaveFp16Sums(p, tiling.shape) && cycles < 2 * best) {
      costs.emplace_back(best, MmaTiling{tiling.shape, 1, true});
    }
  }
}

// Adds the tails of few waves that are faster than their tiles are without, and that may be the fastest of all.
void addTails(std::vector<MmaCost>& costs, const LinearParams& p, int T, const LinearDevice& device) {
  constexpr double kMostToBest = 1.1, kMostToWhole = 0.98;
  const double best = std::min_element(costs.begin(), costs.end(), isCheaperMma)->first;
  const size_t count = costs.size();
  for (size_t i = 0; i < count; ++i) {
    const auto [cycles, tiling] = costs[i];
    if (tiling.parts > 1 || !mayHaveTail(p, tiling.shape)) continue;
    const MmaShape& shape = kMmaShapes[tiling.shape];
    if (tilesOf(shape, T, p.N) > int64_t{kMostTailWaves} * device.multiprocessors) continue;
    const double with_tail = tailOf(shape, p, T, device).first;
    if (with_tail < std::min(cycles * kMostToWhole, best * kMostToBest)) {
      costs.emplace_back(with_tail, MmaTiling{tiling.shape, kMmaTail});
    }
  }
}

}  // namespace

MmaCut mmaCutOf(const MmaTiling& tiling, const LinearParams& params, int T, const LinearDevice& device) {
  const MmaShape& shape = kMmaShapes[tiling.shape];
  if (hasMmaTail(tiling)) return tailOf(shape, params, T, device).second;
  return {tilesOf(shape, T, params.N), tiling.parts};
}

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
  if (tiling.fp16_sums) return tiling.parts == 1 && mayHaveFp16Sums(params, tiling.shape);
  if (tiling.parts == 1) return true;
  if (hasMmaTail(tiling)) return mayHaveTail(params, tiling.shape);
  const MmaShape& shape = kMmaShapes[tiling.shape];
  if (!params.scratch || tiling.parts < 1 || tiling.parts > kMmaMaxParts || !maySplitMma(kind, tiling.shape))
    return false;
  return isFilled(depthOf(shape, params), tiling.parts) &&
         tilesOf(shape, T, params.N) * (tiling.parts - 1) <= kMmaMaxSharingBlocks;
}

MmaTiling cheapestMmaTiling(const LinearParams& params, const LinearDevice& device) {
  const std::vector<MmaTiling> tilings = rankMmaTilings(params, params.T, device);
  return *std::find_if_not(tilings.begin(), tilings.end(), isMeasuredMma);
}

std::vector<MmaTiling> rankMmaTilings(const LinearParams& params, int T, const LinearDevice& device) {
  std::vector<MmaCost> costs;
  for (int shape = 0; shape < kMmaShapeCount; ++shape) {
    MmaCost shared{std::numeric_limits<double>::max(), {-1, 1}};
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
  addTails(costs, params, T, device);
  addFp16Sums(costs, params, device);
  std::stable_sort(costs.begin(), costs.end(), isCheaperMma);
  std::vector<MmaTiling> tilings;
  for (const auto& [cycles, tiling] : costs) tilings.push_back(tiling);
  return tilings;
}

int64_t mmaTokensOfSameTime(const MmaTiling& tiling, int T, int N, const LinearDevice& device) {
  const MmaShape& tile = kMmaShapes[tiling.shape];
  const int64_t rows = ceilDiv(T, tile.tokens);
  if (hasMmaTail(tiling)) return rows * tile.tokens;
  const int64_t columns = int64_t{ceilDiv(N, tile.features)} * tiling.parts;
  const int64_t of_one = ceilDiv<int64_t>(rows * columns, device.multiprocessors);
  return (of_one == 1 ? rows : of_one * device.multiprocessors / columns) * tile.tokens;
}

}  // namespace padfree
