// SPDX-License-Identifier: Apache-2.0
#include "linear/mma/menu.h"

#include <algorithm>
#include <limits>

#include "common/integers.h"

namespace padfree {
namespace {

constexpr int kSystemBytes = 1024;  // of shared memory, beside a block's own

// A multiprocessor computes its tiles in rounds of as many blocks as it holds. `rate`, `tile_cycles` and
// `launch_cycles` are a least-squares fit to the relative times of the GEMMs of three encoders at T 128, 1403 and 4802.
double cyclesOf(const MmaShape& shape, const LinearParams& p, int multiprocessors, int shared_bytes) {
  const int at_once = std::max(std::min(shape.at_once, shared_bytes / (mmaSharedBytes(shape) + kSystemBytes)), 1);
  const int64_t tiles = int64_t{ceilDiv(p.T, shape.tokens)} * ceilDiv(p.N, shape.features);
  const int64_t of_one = ceilDiv<int64_t>(tiles, multiprocessors), rounds = ceilDiv<int64_t>(of_one, at_once);
  const double missing = static_cast<double>(rounds * at_once - of_one) * shape.alone;
  const double products = static_cast<double>(shape.tokens) * shape.features * p.K / (p.scale ? 2 : 1);
  return (static_cast<double>(of_one) + missing) * products / shape.rate +
         static_cast<double>(rounds) * shape.tile_cycles + shape.launch_cycles;
}

}  // namespace

int cheapestMmaShape(const LinearParams& params, int multiprocessors, int shared_bytes) {
  int cheapest = 0;
  double fewest = std::numeric_limits<double>::max();
  for (int i = 0; i < kMmaShapeCount; ++i) {
    const double cycles = cyclesOf(kMmaShapes[i], params, multiprocessors, shared_bytes);
    if (cycles >= fewest) continue;
    fewest = cycles;
    cheapest = i;
  }
  return cheapest;
}

}  // namespace padfree
