// SPDX-License-Identifier: Apache-2.0
// The sums of a tile: stages of the reduction stream through shared memory, and while mma.sync works on one step's
// fragments those of the next are loaded.
#pragma once

#include "common/perturb.cuh"
#include "linear/mma/operands.cuh"
#include "linear/mma/parts.cuh"
#include "linear/mma/work.cuh"

namespace padfree {

// A lane has the sums of tokens lane / 4 and lane / 4 + 8 of a block of 16, each of the features lane % 4 * 2 and the
// next of a block of 8.
template <typename Operands, typename Tile>
using MmaSums = typename Operands::Sum[Tile::kTokenBlocks][2 * Tile::kFeaturePairs][4];

template <typename Operands, typename Tile>
class MmaFragments {
 public:
  // Offsets of the first step's in a stage, of the input and of the weight.
  struct Offsets {
    int input, weight;
  };
  static __device__ Offsets offsetsOf(const MmaWarp<Tile>& warp) {
    return {Tile::rowOffset(warp.token + warp.lane % 16, warp.slice * Tile::kSteps * 2 + warp.lane / 16),
            Operands::template weightOffset<Tile>(warp)};
  }

  __device__ void load(const unsigned char* stage, const Offsets& offsets, int step) {
#pragma unroll
    for (int i = 0; i < Tile::kTokenBlocks; ++i) {
      loadMatrices(input_[i], stage + (offsets.input ^ step * kMmaStepBytes) + i * 16 * Tile::kDepthBytes);
    }
#pragma unroll
    for (int j = 0; j < Tile::kFeaturePairs; ++j) {
      Operands::template loadWeight<Tile>(weight_[j], stage + Tile::kInputBytes, offsets.weight, step, j);
    }
  }

  __device__ void multiply(MmaSums<Operands, Tile>& sums) const {
#pragma unroll
    for (int j = 0; j < Tile::kFeaturePairs; ++j) {
#pragma unroll
      for (int i = 0; i < Tile::kTokenBlocks; ++i) {
        Operands::multiply(sums[i][2 * j], input_[i], weight_[j][0], weight_[j][1]);
        Operands::multiply(sums[i][2 * j + 1], input_[i], weight_[j][2], weight_[j][3]);
      }
    }
  }

 private:
  unsigned input_[Tile::kTokenBlocks][4], weight_[Tile::kFeaturePairs][4];
};

// Adds a warp's products of the tile that begins at `token` and `feature`, of a part of the reduction, to its sums, and
// calls meanwhile() while the first stages are fetched. All copies have arrived when it returns, but warps may still
// read the stages.
template <typename Operands, typename Tile, typename Parts, typename Meanwhile>
__device__ void addMmaProducts(MmaSums<Operands, Tile>& sums, const MmaWork& work, const MmaWarp<Tile>& warp, int token,
                               int feature, const Parts& parts, unsigned char* shared, Meanwhile meanwhile) {
  const int64_t row_bytes = int64_t{work.K} * Operands::kElementBytes;
  int stages = static_cast<int>(ceilDiv<int64_t>(row_bytes, Tile::kDepthBytes)), first = 0;
  if constexpr (std::is_same_v<Parts, MmaParts<Tile>>) {
    const int of_part = ceilDiv(stages, parts.count());
    first = parts.part() * of_part;
    stages = min(of_part, stages - first);
  }
  MmaRowCopies<Tile, Tile::kTokens> input(work.x, work.T, token, row_bytes, first);
  auto weight = Operands::template weightCopies<Tile>(work, feature, first);
  const auto fetch = [&](int stage, unsigned char* memory) {
    if (stage < stages) {
      input.run(memory);
      weight.run(memory + Tile::kInputBytes);
    }
    commitCopies();  // an empty group if nothing is left: waitCopies counts groups
  };
  constexpr bool kManyRings = Tile::kMostStages > Tile::kStages;
  const int ring = kManyRings ? work.stages : Tile::kStages;
  const auto waitForStage = [ring] {
    if (!kManyRings || ring == Tile::kStages) {
      waitCopies<Tile::kStages - 2>();
    } else if (Tile::kMoreStages < Tile::kMostStages && ring == Tile::kMoreStages) {
      waitCopies<Tile::kMoreStages - 2>();
    } else {
      waitCopies<Tile::kMostStages - 2>();
    }
    perturb();
    __syncthreads();  // all threads' copies have arrived, and all warps have left the stage that is fetched next
  };

#pragma unroll(kManyRings ? 1 : Tile::kStages)
  for (int stage = 0; stage < ring - 1; ++stage) fetch(stage, shared + stage * Tile::kStageBytes);
  const auto offsets = MmaFragments<Operands, Tile>::offsetsOf(warp);
  MmaFragments<Operands, Tile> fragments[2];
  meanwhile();
  waitForStage();
  fragments[0].load(shared, offsets, 0);
  unsigned char* const end = shared + ring * Tile::kStageBytes;
  unsigned char *current = shared, *last = end - Tile::kStageBytes;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
      const bool is_last = step == Tile::kSteps - 1;
      if (is_last) {
        waitForStage();
        last = current;
        current += Tile::kStageBytes;
        if (current == end) current = shared;
      }
      fragments[(step + 1) % 2].load(current, offsets, is_last ? 0 : step + 1);
      if (step == 0) fetch(stage + ring - 1, last);
      fragments[step % 2].multiply(sums);
    }
  }
}

}  // namespace padfree
