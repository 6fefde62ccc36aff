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

struct AnyGatedInBytes : AnyGated {
  static constexpr Out out = Out::kThinChunks;
  using AnyGated::AnyGated;
};

// A layer's last products: residual, moments, and results twice.
struct BothInPlace : InPlace<true, false> {
  static constexpr bool paired = true, writes_e4m3 = true;
  using InPlace<true, false>::InPlace;
};
struct AnyBothInPlace : AnyInPlace {
  static constexpr Out out = Out::kBothTiles;
  static constexpr bool paired = true;
  const bool writes_y, writes_e4m3;
  explicit __device__ AnyBothInPlace(const Work& work)
      : AnyInPlace(work), writes_y(work.writes_y), writes_e4m3(work.writes_e4m3) {}
};

// Calls `run` with the tag of the epilogue of such a product.
template <typename Run>
cudaError_t withE4m3Epilogue(const Work& work, Run run) {
  const bool shares = sharesTile(work), norms_input = work.normed == Normed::kInput;
  if (work.rotary_features > 0) return run(TypeTag<AnyRotating>());
  if (work.gated) return work.writes_e4m3 ? run(TypeTag<AnyGatedInBytes>()) : run(TypeTag<AnyGated>());
  if (!work.residual && !work.moments_out && work.writes_y != work.writes_e4m3) {
    if (work.writes_e4m3) {
      if (norms_input && !shares && work.activation == Activation::kGelu) {
        return run(TypeTag<InBytes<Activation::kGelu>>());
      }
      return run(TypeTag<AnyInBytes>());
    }
    if (work.activation == Activation::kNone) {
      return norms_input && !shares ? run(TypeTag<InChunks<Activation::kNone, true, false>>())
                                    : run(TypeTag<AnyInChunks<Activation::kNone>>());
    }
  }
  const bool is_last = work.normed == Normed::kResidual && work.moments_out && work.writes_y && work.writes_e4m3;
  return is_last && !shares ? run(TypeTag<BothInPlace>()) : run(TypeTag<AnyBothInPlace>());
}

}  // namespace padfree
