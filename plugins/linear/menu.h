// SPDX-License-Identifier: Apache-2.0
// Which tiles the Hopper kernels are compiled for: those without which some GEMM took 1 % longer, and fewer of
// epilogues that no measured model has (docs/internals/linear-tiles.md, "Which tiles exist"). Kernels for everything
// else took most of the time of a build.
#pragma once

#include <initializer_list>

#include "linear/launch.h"

namespace padfree {

// What becomes of a tile's sums: each of these has kernels of its own (sm90/epilogue.cuh, sm90/epilogue_e4m3.cuh).
enum class EpilogueKind {
  kChunks,      // nothing is added; without activation, or with GELU
  kAnyChunks,   // the same with other activations
  kPairs,       // rotated pairs, and gates as encoders have them
  kHeads,       // heads that are normed and rotated, not in e4m3
  kAnyPairs,    // other gates
  kInPlace,     // a residual is added, as layers have it whose norms are folded
  kAnyInPlace,  // everything else without activation
  kActivated    // everything else
};

// The kind of epilogue of a GEMM whose tiles blocks share, or do not.
EpilogueKind epilogueKindOf(const LinearParams& params, bool shares_tile);

constexpr bool isOneOf(int tokens, std::initializer_list<int> sizes) {
  for (const int size : sizes) {
    if (size == tokens) return true;
  }
  return false;
}

// Whether there are tiles of so many tokens. Blocks share a tile where there are few: in GEMMs of few tokens.
constexpr bool hasTile(EpilogueKind kind, bool e4m3, int tokens) {
  if (e4m3) {
    switch (kind) {
      case EpilogueKind::kHeads:
        return false;
      case EpilogueKind::kAnyChunks:
        return isOneOf(tokens, {32, 64, 96, 128, 160, 192, 240});
      case EpilogueKind::kAnyPairs:
        return isOneOf(tokens, {32, 64, 96, 128, 160, 224, 256});
      case EpilogueKind::kActivated:
        return isOneOf(tokens, {32, 64, 96, 144, 192});
      case EpilogueKind::kPairs:
        return isOneOf(tokens, {32, 64, 96, 128, 160, 176, 192, 208, 224, 256});
      case EpilogueKind::kAnyInPlace:
        return isOneOf(tokens, {32, 64, 96, 144, 160, 176, 192, 224});
      default:
        return tokens >= 128 || tokens % 32 == 0;
    }
  }
  switch (kind) {
    case EpilogueKind::kAnyChunks:
      return isOneOf(tokens, {16, 32, 64, 96, 128, 160, 192, 224, 256});
    case EpilogueKind::kPairs:
      return tokens != 80;
    case EpilogueKind::kHeads:
      return isOneOf(tokens, {16, 32, 48, 64, 96, 128, 160, 176, 192, 208, 224});
    case EpilogueKind::kAnyPairs:
      return isOneOf(tokens, {32, 64, 96, 128, 144, 224, 256});
    case EpilogueKind::kAnyInPlace:
      return !isOneOf(tokens, {112, 176, 224, 240, 256});
    case EpilogueKind::kActivated:
      return isOneOf(tokens, {16, 32, 48, 64, 96, 112, 144});
    default:
      return true;
  }
}
// Whether heads of kWideHead are normed in tiles of so many tokens: in all that leave room in shared memory for what
// blocks tell each other.
constexpr bool hasWideHeads(int tokens) {
  return tokens != 208;
}
constexpr bool hasSharedTile(EpilogueKind kind, bool e4m3, int tokens) {
  if (e4m3) return tokens == 32 && (kind == EpilogueKind::kChunks || kind == EpilogueKind::kAnyInPlace);
  return isOneOf(tokens, {16, 32, 48, 64, 96}) &&
         (kind == EpilogueKind::kChunks || kind == EpilogueKind::kInPlace || kind == EpilogueKind::kAnyInPlace);
}

// The same with resident input.
constexpr bool hasResidentTile(bool e4m3, int tokens) {
  return e4m3 ? isOneOf(tokens, {128, 144, 160, 176, 192, 224}) : isOneOf(tokens, {176, 192, 224});
}

}  // namespace padfree
