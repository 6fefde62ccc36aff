// SPDX-License-Identifier: Apache-2.0
// Epilogues: what becomes of a tile's sums. Each is a kernel of its own, because code that runs once per tile waits for
// its instructions: with all of them in one kernel, a layer of BERT-base took a fifth longer at 1229 tokens.
#pragma once

#include <type_traits>

#include "common/launch.h"
#include "linear/activation.cuh"
#include "linear/menu.h"
#include "linear/sm90/head_sums.cuh"
#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

inline __host__ __device__ bool sharesTile(const Work& work) {
  return work.tiling.parts > 1;
}

// What is kept of each row that is normed: its scale, and also its shift where it may be the residual's. Where nothing
// is added, only the input is normed.
template <typename Epilogue>
using ScaleOf = std::conditional_t<leavesInChunks(Epilogue::out), float, float2>;

// Whether blocks share a tile. Where they may, the kernel decides at run time; elsewhere it has no code for that, which
// would be a branch for each box of the tile and the sums of all blocks.
template <bool kMayShare>
struct Sharing {
  static constexpr bool shares_tile = false;
  explicit __device__ Sharing(const Work&) {}
};
template <>
struct Sharing<true> {
  const bool shares_tile;
  explicit __device__ Sharing(const Work& work) : shares_tile(sharesTile(work)) {}
};

// What most epilogues do not do.
struct Separate {
  static constexpr bool gated = false, rotates = false, norms_heads = false;
  static constexpr bool paired = false;  // whether a thread's two features are neighbours, instead of 8 apart
  static constexpr bool writes_y = true, writes_e4m3 = false;
};

// Nothing is added: a tile leaves in chunks.
template <Activation kActivation, bool kNormsInput, bool kSharesTile>
struct InChunks : Separate {
  static constexpr Out out = Out::kChunks;
  static constexpr Activation activation = kActivation;
  static constexpr bool residual = false, norms_input = kNormsInput, normed = kNormsInput, shares_tile = kSharesTile;
  explicit __device__ InChunks(const Work&) {}
};

// The same with rare activations.
template <Activation kActivation, bool kMayShare = false>
struct AnyInChunks : Separate, Sharing<kMayShare> {
  static constexpr Out out = Out::kChunks;
  static constexpr Activation activation = kActivation;
  static constexpr bool residual = false;
  const bool norms_input, normed;
  explicit __device__ AnyInChunks(const Work& work)
      : Sharing<kMayShare>(work), norms_input(work.normed == Normed::kInput), normed(norms_input) {}
};

// The same with ReLU or SiLU, which few models have without a gate.
struct RareInChunks : AnyInChunks<Activation::kNone> {
  const Activation activation;
  explicit __device__ RareInChunks(const Work& work)
      : AnyInChunks(work), activation(work.activation == Activation::kRelu ? Activation::kRelu : Activation::kSilu) {}
};

// The first features of a GEMM are rotated in pairs (RoPE). Its input is normed, as in nearly all encoders, or scaled
// by 1.
struct Rotating : InChunks<Activation::kNone, true, false> {
  static constexpr bool rotates = true;
  using InChunks::InChunks;
};

// The same for heads that are normed first (RMS norm): a tile's features are a head or, of kWideHead, half of one.
struct NormingHeads : Rotating {
  static constexpr bool norms_heads = true;
  using Rotating::Rotating;
};

// Whether clusters of heads come before all others (BlockCoord): in GEMMs of many tokens.
template <typename Epilogue>
constexpr bool headsComeFirst(int tokens) {
  return Epilogue::norms_heads && tokens >= kLargeTokens;
}

// Whether it norms heads of kWideHead, too.
template <typename Epilogue>
constexpr bool normsWideHeads(int tokens) {
  return Epilogue::norms_heads && hasWideHeads(tokens);
}

// What such epilogues need, and nothing else.
struct NoHeadHalves {};
template <typename Epilogue, int kTokens>
using HeadHalvesOf = std::conditional_t<normsWideHeads<Epilogue>(kTokens), HeadHalves<kTokens>, NoHeadHalves>;

// Two features make one result; the input is as for Rotating.
template <Activation kActivation>
struct Gated : InChunks<kActivation, true, false> {
  static constexpr Out out = Out::kNarrowChunks;
  static constexpr bool gated = true;
  using InChunks<kActivation, true, false>::InChunks;
};
struct AnyGated : AnyInChunks<Activation::kNone> {
  static constexpr Out out = Out::kNarrowChunks;
  static constexpr bool gated = true;
  const Activation activation;
  explicit __device__ AnyGated(const Work& work) : AnyInChunks(work), activation(work.activation) {}
};

// Residual and moments, without activation: a tile stays until all of it is computed.
template <bool kNormsResidual, bool kSharesTile>
struct InPlace : Separate {
  static constexpr Out out = kSharesTile ? Out::kTile : Out::kStages;  // whose sums stand where the stages were
  static constexpr Activation activation = Activation::kNone;
  static constexpr bool norms_input = false, residual = true, norms_residual = kNormsResidual, normed = kNormsResidual,
                        moments = true, shares_tile = kSharesTile;
  explicit __device__ InPlace(const Work&) {}
};

// The last one of a post-norm encoder: another kernel, which takes no moments, norms its sums.
struct LastInPlace : InPlace<true, false> {
  static constexpr bool moments = false;
  using InPlace<true, false>::InPlace;
};

// Whether an epilogue that decides everything else at run time has an activation too: code for all activations in every
// box is so long that a tile waits for it far longer than for its main loop.
struct NotActivated {
  static constexpr Activation activation = Activation::kNone;
  explicit __device__ NotActivated(const Work&) {}
};
struct Activated {
  const Activation activation;
  explicit __device__ Activated(const Work& work) : activation(work.activation) {}
};

// Everything that a GEMM may ask for.
template <typename Activating, bool kMayShare = false>
struct AnyInPlace : Separate, Activating, Sharing<kMayShare> {
  static constexpr Out out = Out::kTile;
  const bool norms_input, residual, norms_residual, normed, moments;
  explicit __device__ AnyInPlace(const Work& work)
      : Activating(work),
        Sharing<kMayShare>(work),
        norms_input(work.normed == Normed::kInput),
        residual(work.residual),
        norms_residual(work.normed == Normed::kResidual),
        normed(norms_input || norms_residual),
        moments(work.moments_out != nullptr) {}
};

template <EpilogueKind kKind>
using EpilogueKindTag = std::integral_constant<EpilogueKind, kKind>;

// Calls `run` with the tag of a GEMM's epilogue of this kind; kMayShare: blocks may share a tile of this size.
template <bool kMayShare, typename Run>
auto withEpilogue(EpilogueKindTag<EpilogueKind::kChunks>, const Work& work, Run run) {
  if constexpr (kMayShare) {
    if (sharesTile(work)) return run(TypeTag<InChunks<Activation::kNone, false, true>>());
  }
  const bool normed = work.normed == Normed::kInput;
  if (work.activation == Activation::kGelu) {
    return normed ? run(TypeTag<InChunks<Activation::kGelu, true, false>>())
                  : run(TypeTag<InChunks<Activation::kGelu, false, false>>());
  }
  return normed ? run(TypeTag<InChunks<Activation::kNone, true, false>>())
                : run(TypeTag<InChunks<Activation::kNone, false, false>>());
}
template <bool kMayShare, typename Run>
auto withEpilogue(EpilogueKindTag<EpilogueKind::kAnyChunks>, const Work& work, Run run) {
  if (work.activation == Activation::kGeluTanh) return run(TypeTag<AnyInChunks<Activation::kGeluTanh>>());
  return run(TypeTag<RareInChunks>());
}
template <bool kMayShare, typename Run>
auto withEpilogue(EpilogueKindTag<EpilogueKind::kPairs>, const Work& work, Run run) {
  if (work.rotary_features > 0) return run(TypeTag<Rotating>());
  if (work.activation == Activation::kGelu) return run(TypeTag<Gated<Activation::kGelu>>());
  return work.activation == Activation::kGeluTanh ? run(TypeTag<Gated<Activation::kGeluTanh>>())
                                                  : run(TypeTag<Gated<Activation::kSilu>>());
}
template <bool kMayShare, typename Run>
auto withEpilogue(EpilogueKindTag<EpilogueKind::kHeads>, const Work&, Run run) {
  return run(TypeTag<NormingHeads>());
}
template <bool kMayShare, typename Run>
auto withEpilogue(EpilogueKindTag<EpilogueKind::kAnyPairs>, const Work&, Run run) {
  return run(TypeTag<AnyGated>());
}
template <bool kMayShare, typename Run>
auto withEpilogue(EpilogueKindTag<EpilogueKind::kInPlace>, const Work& work, Run run) {
  const bool normed = work.normed == Normed::kResidual;
  if constexpr (kMayShare) {
    if (sharesTile(work)) return normed ? run(TypeTag<InPlace<true, true>>()) : run(TypeTag<InPlace<false, true>>());
  }
  if (!work.moments_out) return run(TypeTag<LastInPlace>());
  return normed ? run(TypeTag<InPlace<true, false>>()) : run(TypeTag<InPlace<false, false>>());
}
template <bool kMayShare, typename Run>
auto withEpilogue(EpilogueKindTag<EpilogueKind::kAnyInPlace>, const Work&, Run run) {
  return run(TypeTag<AnyInPlace<NotActivated, kMayShare>>());
}
template <bool kMayShare, typename Run>
auto withEpilogue(EpilogueKindTag<EpilogueKind::kActivated>, const Work&, Run run) {
  return run(TypeTag<AnyInPlace<Activated>>());
}

}  // namespace padfree
