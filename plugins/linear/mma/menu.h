// SPDX-License-Identifier: Apache-2.0
// The tiles that the kernels on mma.sync are compiled for.
#pragma once

#include <vector>

#include "linear/choice.h"

namespace padfree {

// Each kind is a kernel of its own: where it decides little at run time, the instructions of several rows overlap.
enum class MmaEpilogueKind {
  kPlain,    // nothing but a bias
  kGelu,     // the same, with GELU
  kInPlace,  // a residual is added and moments are taken, as layers have it whose norms are folded
  kAny,      // everything else but pairs
  kPairs     // gates or rotated pairs
};

MmaEpilogueKind mmaEpilogueKindOf(const LinearParams& params);

constexpr int kMmaWarpFeatures = kMomentFeatures;  // a warp takes the moments of its rows

// A block computes `features` features of `tokens` tokens; a warp kMmaWarpFeatures of warp_tokens. `slices` warps sum
// the same numbers, each over its own part of every stage: in GEMMs of so few tokens that the time of one warp counts.
struct MmaShape {
  int tokens, features, warp_tokens, slices;
  int depth_bytes;                       // that a stage has of a row
  int stages, more_stages, most_stages;  // of the ring in shared memory: mmaStages() chooses
  int bound;                             // blocks of a multiprocessor that the compiler leaves registers for
  int blocks;                            // and how many they turn out to have room for
  // Fitted to 36 GEMMs on an H200 (menu.cpp).
  int rate;     // products per cycle of a multiprocessor
  float alone;  // the part of their time that each missing block adds, where a multiprocessor has fewer
  int tile_cycles, launch_cycles;
};

constexpr MmaShape kMmaShapes[] = {
    {128, 256, 64, 1, 64, 4, 4, 4, 1, 1, 1133, 0.00f, 10813, -1322},  //
    {128, 128, 64, 1, 128, 3, 3, 3, 2, 2, 1035, 0.00f, 7400, 888},    // two blocks where there are 195 KB
    {128, 128, 64, 1, 64, 3, 3, 3, 2, 2, 943, 0.40f, 10298, -4464},   // two blocks in 100 KB
    {64, 128, 32, 1, 64, 4, 6, 12, 3, 3, 763, 0.15f, 5158, 506},      //
    {128, 64, 32, 1, 64, 4, 6, 12, 3, 3, 774, 0.15f, 6182, -809},     //
    {64, 64, 32, 2, 128, 3, 5, 9, 3, 3, 693, 0.35f, 3763, 56},        //
    {32, 64, 32, 4, 256, 4, 6, 6, 3, 3, 573, 0.10f, 2820, 1297},      //
    {16, 64, 16, 4, 256, 4, 8, 8, 1, 4, 380, 0.30f, 1929, 1590},      //
};
constexpr int kMmaShapeCount = static_cast<int>(sizeof(kMmaShapes) / sizeof(kMmaShapes[0]));

// A tile's number, how many blocks share the reduction of each tile (parts.cuh), or kMmaTail, and whether products are
// added 16 at a time in fp16 (operands.cuh).
struct MmaTiling {
  int shape, parts;
  bool fp16_sums = false;
};
constexpr int kMmaMaxParts = 8, kMmaMaxSharingBlocks = 256;  // without those of the last part
constexpr int kMmaSharedTileFloats = 16 * 64;
static_assert(kLinearScratchBytes == kMmaMaxSharingBlocks * (8 + kMmaSharedTileFloats * 4));  // a mark, and sums

// Instead of parts: every multiprocessor gets as many whole tiles, and blocks share those that are left over.
constexpr int kMmaTail = 16;
constexpr bool hasMmaTail(const MmaTiling& tiling) {
  return tiling.parts == kMmaTail;
}
constexpr int kMmaMaxTailBlocks = 192,
              kMmaTailTileFloats = 128 * 128;  // that share tiles, without those of the last part
static_assert(kLinearTailScratchBytes == kMmaMaxSharingBlocks * 8 + kMmaMaxTailBlocks * kMmaTailTileFloats * 4);

// Bytes of shared memory: a scale and a shift of each row, and the stages.
constexpr int mmaSharedBytes(const MmaShape& shape, int stages) {
  return shape.tokens * 2 * static_cast<int>(sizeof(float)) +
         stages * (shape.tokens + shape.features) * shape.depth_bytes;
}

// As many stages as leave room for the blocks that a multiprocessor has at a time. To fetch more ahead does not pay
// where the reduction, of rows of `row_bytes`, is short.
int mmaStages(const MmaShape& shape, int64_t blocks, int64_t row_bytes, const LinearDevice& device);

// Whether there is a kernel with this tile. Rare epilogues have few tiles, and those of many features no tile that was
// fastest for few features alone: kernels take most of the time of a build. int8 has three tiles.
constexpr bool hasMmaShape(MmaEpilogueKind kind, int shape, bool int8 = false) {
  if (shape < 0 || shape >= kMmaShapeCount) return false;
  const MmaShape& tile = kMmaShapes[shape];
  if (int8)
    return (tile.features == 128 && tile.bound == 2 && tile.depth_bytes == 64) || tile.slices == 2 || tile.tokens == 32;
  switch (kind) {
    case MmaEpilogueKind::kPlain:
    case MmaEpilogueKind::kInPlace:
      return true;
    case MmaEpilogueKind::kGelu:
      return tile.features > 64 || tile.slices > 1;
    case MmaEpilogueKind::kPairs:
      return tile.features > 64 || tile.slices == 4;
    case MmaEpilogueKind::kAny:
      return (tile.features == 128 && tile.depth_bytes == 64) || tile.slices == 4;
  }
  return false;
}

// Whether blocks may share such tiles: the smallest, where little becomes of the sums. These are kernels of their own.
constexpr bool maySplitMma(MmaEpilogueKind kind, int shape) {
  return kMmaShapes[shape].tokens == 16 && kind != MmaEpilogueKind::kGelu && kind != MmaEpilogueKind::kPairs;
}

// Whether such tiles may be a tail: of 128 features, for GEMMs that have long reductions.
constexpr bool mayBeMmaTail(MmaEpilogueKind kind, int shape, bool bytes) {
  return kMmaShapes[shape].features == 128 && !bytes &&
         (kind == MmaEpilogueKind::kPlain || kind == MmaEpilogueKind::kInPlace);
}

// Whether there is a kernel that adds products in fp16: with the largest tile that leaves registers for that. At half
// the rate its time is that of tensor cores.
constexpr bool hasMmaFp16Sums(MmaEpilogueKind kind, int shape) {
  const MmaShape& tile = kMmaShapes[shape];
  return kind != MmaEpilogueKind::kAny && tile.tokens == 64 && tile.features == 128;
}

// How a GEMM's tiles are divided: `parts` blocks share each of the first `shared`, and every other has one of its own.
struct MmaCut {
  int64_t shared;
  int parts;
};
MmaCut mmaCutOf(const MmaTiling& tiling, const LinearParams& params, int T, const LinearDevice& device);

// Whether there is a kernel for a GEMM of T tokens with this tiling, and scratch memory where blocks share tiles.
bool hasMmaTiling(const LinearParams& params, int T, const MmaTiling& tiling);

// A tiling as engines keep it, which are built where there is no Hopper: a number that is no tiling's of Hopper
// (linear/tiling.h) and names what no two tiles have in common.
constexpr LinearChoice choiceOfMma(const MmaTiling& tiling) {
  const MmaShape& tile = kMmaShapes[tiling.shape];
  return 1 << 28 | (tiling.fp16_sums ? 1 << 29 : 0) | tile.tokens | (tiling.parts - 1) << 8 | tile.features / 64 << 16 |
         tile.slices << 20 | tile.depth_bytes / 64 << 24;
}

// The tiling of a choice, with shape -1 where there is none.
constexpr MmaTiling mmaTilingOf(LinearChoice choice) {
  MmaTiling tiling{kMmaShapeCount - 1, (choice >> 8 & 0xff) + 1, (choice >> 29 & 1) != 0};
  while (tiling.shape >= 0 && choiceOfMma(tiling) != choice) --tiling.shape;
  return tiling.parts <= kMmaMaxParts || hasMmaTail(tiling) ? tiling : MmaTiling{-1, 1};
}

// The tilings that there are for a GEMM of T tokens, those first that take the least time: each tile alone, shared as
// it is best shared, and with a tail where that is faster and the last of few waves. On GPUs whose tensor cores may
// take less time to add in fp16, a tile that does so comes second.
std::vector<MmaTiling> rankMmaTilings(const LinearParams& params, int T, const LinearDevice& device);

// The first of these that engines need not have chosen by measuring: neither with a tail, for which there may be too
// little scratch memory, nor with sums in fp16.
constexpr bool isMeasuredMma(const MmaTiling& tiling) {
  return hasMmaTail(tiling) || tiling.fp16_sums;
}
MmaTiling cheapestMmaTiling(const LinearParams& params, const LinearDevice& device);

// The most tokens for which a tiling takes as long as for T: as many blocks on a multiprocessor, or, where each has one
// at most, or there is a tail, as many blocks.
int64_t mmaTokensOfSameTime(const MmaTiling& tiling, int T, int N, const LinearDevice& device);

}  // namespace padfree
