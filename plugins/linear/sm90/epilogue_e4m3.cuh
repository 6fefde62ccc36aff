// SPDX-License-Identifier: Apache-2.0
// Epilogues of products of e4m3: those of layers without padding's usual products are kernels of their own, everything
// else is looked at as it runs.
#pragma once

#include "linear/sm90/epilogue.cuh"

namespace padfree {

// Results in e4m3 alone, to which nothing is added.
template <Activation kActivation>
struct InBytes : InChunks<kActivation, true, false> {
  static constexpr Out out = Out::kNarrowChunks;
  static constexpr bool paired = true;
  using InChunks<kActivation, true, false>::InChunks;
};
struct AnyInBytes : AnyInChunks<Activation::kNone> {
  static constexpr Out out = Out::kNarrowChunks;
  static constexpr bool paired = true;
  const Activation activation;
  explicit __device__ AnyInBytes(const Work& work) : AnyInChunks(work), activation(work.activation) {}
};

template <Activation kActivation>
struct GatedInBytes : Gated<kActivation> {
  static constexpr Out out = Out::kThinChunks;
  using Gated<kActivation>::Gated;
};
struct AnyGatedInBytes : AnyGated {
  static constexpr Out out = Out::kThinChunks;
  using AnyGated::AnyGated;
};

// Products that a residual is added to.
template <bool kNormsResidual, bool kMoments, bool kBoth>
struct PairedInPlace : InPlace<kNormsResidual, false> {
  static constexpr bool paired = true, moments = kMoments, writes_e4m3 = kBoth;
  using InPlace<kNormsResidual, false>::InPlace;
};
template <typename Activating>
struct AnyBothInPlace : AnyInPlace<Activating> {
  static constexpr Out out = Out::kBothTiles;
  static constexpr bool paired = true;
  const bool writes_y, writes_e4m3;
  explicit __device__ AnyBothInPlace(const Work& work)
      : AnyInPlace<Activating>(work), writes_y(work.writes_y), writes_e4m3(work.writes_e4m3) {}
};

// Calls `run` with the tag of the epilogue of a product in place. Kernels of their own have those of encoders that norm
// behind them: the first adds to an embedding that is normed already, the last gives its sums to another kernel.
template <typename Run>
cudaError_t withE4m3InPlace(const Work& work, Run run) {
  if (work.activation != Activation::kNone) return run(TypeTag<AnyBothInPlace<Activated>>());
  if (work.residual && work.normed != Normed::kInput && work.writes_y && !sharesTile(work)) {
    const bool normed = work.normed == Normed::kResidual, moments = work.moments_out, both = work.writes_e4m3;
    if (normed && moments && both) return run(TypeTag<PairedInPlace<true, true, true>>());
    if (!normed && moments && both) return run(TypeTag<PairedInPlace<false, true, true>>());
    if (normed && !moments && !both) return run(TypeTag<PairedInPlace<true, false, false>>());
  }
  return run(TypeTag<AnyBothInPlace<NotActivated>>());
}

// Calls `run` with the tag of the epilogue of such a product.
template <typename Run>
cudaError_t withE4m3Epilogue(const Work& work, Run run) {
  const bool shares = sharesTile(work), norms_input = work.normed == Normed::kInput;
  if (work.rotary_features > 0) return shares ? run(TypeTag<AnyRotating>()) : run(TypeTag<Rotating>());
  if (work.gated) {
    if (!work.writes_e4m3) return run(TypeTag<AnyGated>());
    if (!shares && work.activation == Activation::kGelu) return run(TypeTag<GatedInBytes<Activation::kGelu>>());
    if (!shares && work.activation == Activation::kSilu) return run(TypeTag<GatedInBytes<Activation::kSilu>>());
    return run(TypeTag<AnyGatedInBytes>());
  }
  if (!work.residual && !work.moments_out && work.writes_y != work.writes_e4m3) {
    if (work.writes_e4m3) {
      if (norms_input && !shares) {
        if (work.activation == Activation::kGelu) return run(TypeTag<InBytes<Activation::kGelu>>());
        if (work.activation == Activation::kGeluTanh) return run(TypeTag<InBytes<Activation::kGeluTanh>>());
      }
      return run(TypeTag<AnyInBytes>());
    }
    if (work.activation == Activation::kNone) {
      return norms_input && !shares ? run(TypeTag<InChunks<Activation::kNone, true, false>>())
                                    : run(TypeTag<AnyInChunks<Activation::kNone>>());
    }
  }
  return withE4m3InPlace(work, run);
}

}  // namespace padfree
