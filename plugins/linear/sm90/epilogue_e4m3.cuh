// SPDX-License-Identifier: Apache-2.0
// Epilogues of GEMMs in e4m3: those that encoder layers usually need are kernels of their own, everything else is
// decided at run time.
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

// GEMMs that a residual is added to.
template <bool kNormsResidual, bool kMoments, bool kBoth>
struct PairedInPlace : InPlace<kNormsResidual, false> {
  static constexpr bool paired = true, moments = kMoments, writes_e4m3 = kBoth;
  using InPlace<kNormsResidual, false>::InPlace;
};
template <typename Activating, bool kMayShare = false>
struct AnyBothInPlace : AnyInPlace<Activating, kMayShare> {
  static constexpr Out out = Out::kBothTiles;
  static constexpr bool paired = true;
  const bool writes_y, writes_e4m3;
  explicit __device__ AnyBothInPlace(const Work& work)
      : AnyInPlace<Activating, kMayShare>(work), writes_y(work.writes_y), writes_e4m3(work.writes_e4m3) {}
};

// As withEpilogue, of GEMMs in e4m3. The GEMMs of post-norm encoders that add in place have kernels of their own: the
// first adds to an embedding that is already normed, the last hands its sums to another kernel.
template <bool kMayShare, typename Run>
auto withE4m3Epilogue(EpilogueKindTag<EpilogueKind::kChunks>, const Work& work, Run run) {
  if (work.activation == Activation::kGelu) return run(TypeTag<InBytes<Activation::kGelu>>());
  return work.normed == Normed::kInput ? run(TypeTag<InChunks<Activation::kNone, true, false>>())
                                       : run(TypeTag<AnyInChunks<Activation::kNone, kMayShare>>());
}
template <bool kMayShare, typename Run>
auto withE4m3Epilogue(EpilogueKindTag<EpilogueKind::kAnyChunks>, const Work&, Run run) {
  return run(TypeTag<AnyInBytes>());
}
template <bool kMayShare, typename Run>
auto withE4m3Epilogue(EpilogueKindTag<EpilogueKind::kPairs>, const Work& work, Run run) {
  if (work.rotary_features > 0) return run(TypeTag<Rotating>());
  return work.activation == Activation::kGelu ? run(TypeTag<GatedInBytes<Activation::kGelu>>())
                                              : run(TypeTag<GatedInBytes<Activation::kSilu>>());
}
template <bool kMayShare, typename Run>
auto withE4m3Epilogue(EpilogueKindTag<EpilogueKind::kAnyPairs>, const Work& work, Run run) {
  return work.writes_e4m3 ? run(TypeTag<AnyGatedInBytes>()) : run(TypeTag<AnyGated>());
}
template <bool kMayShare, typename Run>
auto withE4m3Epilogue(EpilogueKindTag<EpilogueKind::kInPlace>, const Work& work, Run run) {
  if (!work.moments_out) return run(TypeTag<PairedInPlace<true, false, false>>());
  return work.normed == Normed::kResidual ? run(TypeTag<PairedInPlace<true, true, true>>())
                                          : run(TypeTag<PairedInPlace<false, true, true>>());
}
template <bool kMayShare, typename Run>
auto withE4m3Epilogue(EpilogueKindTag<EpilogueKind::kAnyInPlace>, const Work&, Run run) {
  return run(TypeTag<AnyBothInPlace<NotActivated, kMayShare>>());
}
template <bool kMayShare, typename Run>
auto withE4m3Epilogue(EpilogueKindTag<EpilogueKind::kActivated>, const Work&, Run run) {
  return run(TypeTag<AnyBothInPlace<Activated>>());
}

}  // namespace padfree
