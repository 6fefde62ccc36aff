// SPDX-License-Identifier: Apache-2.0
#include "linear/mma/menu.h"

#include <algorithm>
#include <utility>

#include "common/integers.h"

namespace padfree {
namespace {

constexpr int kSystemBytes = 1024;  // of shared memory, beside a block's own

// A multiprocessor computes its tiles in rounds of as many blocks as it holds. `rate`, `tile_cycles` and
// `launch_cycles` are a least-squares fit to the relative times of the GEMMs of three encoders at T 128, 1403 and 4802.
double cyclesOf(const MmaShape& shape, const LinearParams& p, int T, const LinearDevice& device) {
  const int room = device.shared_bytes / (mmaSharedBytes(shape, shape.stages) + kSystemBytes);
  const int at_once = std::max(std::min(shape.blocks, room), 1);
  const int64_t tiles = int64_t{ceilDiv(T, shape.tokens)} * ceilDiv(p.N, shape.features);
  const int64_t of_one = ceilDiv<int64_t>(tiles, device.multiprocessors), rounds = ceilDiv<int64_t>(of_one, at_once);
  const double missing = static_cast<double>(rounds * at_once - of_one) * shape.alone;
  const double products = static_cast<double>(shape.tokens) * shape.features * p.K / (p.scale ? 2 : 1);
  return (static_cast<double>(of_one) + missing) * products / shape.rate +
         static_cast<double>(rounds) * shape.tile_cycles + shape.launch_cycles;
}

}  // namespace

MmaEpilogueKind mmaEpilogueKindOf(const LinearParams& p) {
  if (p.gated || p.rotary_features > 0) return MmaEpilogueKind::kPairs;
  const bool has_activation = p.activation != Activation::kNone;
  if (!has_activation && p.residual && p.moments && !p.x_moments) return MmaEpilogueKind::kInPlace;
  if (p.residual || p.moments || (p.y && (p.y_e4m3 || p.y_int8))) return MmaEpilogueKind::kAny;
  if (p.activation == Activation::kGelu) return MmaEpilogueKind::kGelu;
  return has_activation ? MmaEpilogueKind::kAny : MmaEpilogueKind::kPlain;
}

std::vector<int> rankMmaShapes(const LinearParams& params, int T, const LinearDevice& device) {
  std::vector<std::pair<double, int>> costs;
  for (int i = 0; i < kMmaShapeCount; ++i) {
    if (!hasMmaShape(mmaEpilogueKindOf(params), i, params.int8)) continue;
    costs.emplace_back(cyclesOf(kMmaShapes[i], params, T, device), i);
  }
  std::sort(costs.begin(), costs.end());
  std::vector<int> shapes;
  for (const auto& [cycles, shape] : costs) shapes.push_back(shape);
  return shapes;
}

int64_t mmaTokensOfSameTime(int shape, int T, int N, const LinearDevice& device) {
  const MmaShape& tile = kMmaShapes[shape];
  const int64_t columns = ceilDiv(N, tile.features), rows = ceilDiv(T, tile.tokens);
  const int64_t of_one = ceilDiv<int64_t>(rows * columns, device.multiprocessors);
  return (of_one == 1 ? rows : of_one * device.multiprocessors / columns) * tile.tokens;
}

}  // namespace padfree
