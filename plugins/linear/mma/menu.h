// SPDX-License-Identifier: Apache-2.0
// The tiles that the kernels on mma.sync are compiled for.
#pragma once

#include "linear/launch.h"

namespace padfree {

constexpr int kMmaWarpFeatures = kMomentFeatures;  // a warp takes the moments of its rows

// A block computes `features` features of `tokens` tokens; a warp kMmaWarpFeatures of warp_tokens. `slices` warps sum
// the same numbers, each over its own part of every stage: in GEMMs of so few tokens that the time of one warp counts.
struct MmaShape {
  int tokens, features, warp_tokens, slices;
  int stages, depth_bytes;  // in shared memory, and what each has of a row
  int blocks;               // of a multiprocessor that registers have room for: what it is compiled for
  int at_once;              // and how many they turn out to have room for
  // Fitted to 36 GEMMs on an H200 (menu.cpp).
  int rate;     // products per cycle of a multiprocessor
  float alone;  // the part of their time that each missing block adds, where a multiprocessor has fewer
  int tile_cycles, launch_cycles;
};

constexpr MmaShape kMmaShapes[] = {
    {128, 256, 64, 1, 4, 64, 1, 1, 1133, 0.00f, 10813, -1322},  //
    {128, 128, 64, 1, 3, 128, 1, 2, 1035, 0.00f, 7400, 888},    // two blocks where there are 195 KB
    {128, 128, 64, 1, 3, 64, 2, 2, 943, 0.40f, 10298, -4464},   // two blocks in 100 KB
    {64, 128, 32, 1, 4, 64, 2, 3, 763, 0.15f, 5158, 506},       //
    {128, 64, 32, 1, 4, 64, 2, 3, 774, 0.15f, 6182, -809},      //
    {64, 64, 32, 2, 3, 128, 2, 3, 693, 0.35f, 3763, 56},        //
    {32, 64, 32, 4, 4, 256, 1, 3, 573, 0.10f, 2820, 1297},      //
    {16, 64, 16, 4, 4, 256, 1, 4, 380, 0.30f, 1929, 1590},      //
};
constexpr int kMmaShapeCount = static_cast<int>(sizeof(kMmaShapes) / sizeof(kMmaShapes[0]));

// Bytes of shared memory: the stages, and a scale and a shift of each row.
constexpr int mmaSharedBytes(const MmaShape& shape) {
  return shape.stages * (shape.tokens + shape.features) * shape.depth_bytes +
         shape.tokens * 2 * static_cast<int>(sizeof(float));
}

// The number of the tile that takes the least time.
int cheapestMmaShape(const LinearParams& params, int multiprocessors, int shared_bytes);

}  // namespace padfree
