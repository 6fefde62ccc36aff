// SPDX-License-Identifier: Apache-2.0
// Launches of the Hopper kernel whose input is resident. Included where it is compiled for one type of results. The
// epilogues are those of layers whose norms are folded: hasTiling knows which.
#pragma once

#include "linear/sm90/launch_e4m3.cuh"
#include "linear/sm90/resident.cuh"

namespace padfree {

template <typename T, int kTokens, typename Run>
cudaError_t withEpilogueOf(TypeTag<HalfOperands<T>>, TypeTag<ResidentShape<kTokens>>, const Work& work, Run run) {
  if (work.rotary_features > 0) return run(TypeTag<Rotating>());
  if (work.gated) return run(TypeTag<Gated<Activation::kGelu>>());
  return work.activation == Activation::kGelu ? run(TypeTag<InChunks<Activation::kGelu, true, false>>())
                                              : run(TypeTag<InChunks<Activation::kNone, true, false>>());
}

template <typename T, int kTokens, typename Run>
cudaError_t withEpilogueOf(TypeTag<E4m3Operands<T>>, TypeTag<ResidentShape<kTokens>>, const Work& work, Run run) {
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

template <typename Operands>
cudaError_t launchResident(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  switch (tiling.tokens) {
    case 128:
      return launch<Operands, ResidentShape<128>>(p, tiling, stream);
    case 144:
      return launch<Operands, ResidentShape<144>>(p, tiling, stream);
    case 160:
      return launch<Operands, ResidentShape<160>>(p, tiling, stream);
    case 176:
      return launch<Operands, ResidentShape<176>>(p, tiling, stream);
    case 192:
      return launch<Operands, ResidentShape<192>>(p, tiling, stream);
    case 208:
      return launch<Operands, ResidentShape<208>>(p, tiling, stream);
    case 224:
      return launch<Operands, ResidentShape<224>>(p, tiling, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launchResidentSm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return p.scale ? launchResident<E4m3Operands<T>>(p, tiling, stream)
                 : launchResident<HalfOperands<T>>(p, tiling, stream);
}

}  // namespace padfree
