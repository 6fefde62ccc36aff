// SPDX-License-Identifier: Apache-2.0
// Launches of the Hopper kernel whose input is resident. Included where it is compiled for one type of results. The
// epilogues are those of layers whose norms are folded: hasTiling knows which.
#pragma once

#include "linear/sm90/launch_e4m3.cuh"
#include "linear/sm90/resident.cuh"

namespace padfree {

template <typename T, typename Run>
SelectedKernel withResidentEpilogue(TypeTag<HalfOperands<T>>, const Work& work, Run run) {
  if (work.rotary_features > 0) return run(TypeTag<Rotating>());
  return work.activation == Activation::kGelu ? run(TypeTag<InChunks<Activation::kGelu, true, false>>())
                                              : run(TypeTag<InChunks<Activation::kNone, true, false>>());
}

template <typename T, typename Run>
SelectedKernel withResidentEpilogue(TypeTag<E4m3Operands<T>>, const Work& work, Run run) {
  if (work.rotary_features > 0) return run(TypeTag<Rotating>());
  if (work.gated) {
    return work.activation == Activation::kGelu ? run(TypeTag<GatedInBytes<Activation::kGelu>>())
                                                : run(TypeTag<GatedInBytes<Activation::kSilu>>());
  }
  return work.writes_e4m3 ? run(TypeTag<InBytes<Activation::kGelu>>())
                          : run(TypeTag<InChunks<Activation::kNone, true, false>>());
}

template <typename Operands, int kTokens, typename Epilogue>
auto kernelOf(TypeTag<Operands>, TypeTag<ResidentShape<kTokens>>, TypeTag<Epilogue>) {
  return residentSm90Kernel<Operands, ResidentShape<kTokens>, Epilogue>;
}

template <typename Operands, int kTokens>
SelectedKernel selectResidentIfThere(const Work& work) {
  if constexpr (!hasResidentTile(Operands::scaled, kTokens)) {
    return {};
  } else {
    return withResidentEpilogue(TypeTag<Operands>(), work, selectFor<Operands, ResidentShape<kTokens>>(work));
  }
}

template <typename Operands>
SelectedKernel selectResident(const Work& work) {
  return selectByTokens(work.tiling.tokens,
                        [&](auto tokens) { return selectResidentIfThere<Operands, decltype(tokens)::value>(work); });
}

template <typename T>
cudaError_t launchResidentHalfSm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return launch(p, tiling, stream, selectResident<HalfOperands<T>>);
}
template <typename T>
cudaError_t launchResidentE4m3Sm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return launch(p, tiling, stream, selectResident<E4m3Operands<T>>);
}

}  // namespace padfree
