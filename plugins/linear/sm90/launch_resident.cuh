// SPDX-License-Identifier: Apache-2.0
// Launches of the Hopper kernel whose input is resident. Included where it is compiled for one type of results. The
// epilogues are those of layers whose norms are folded: hasTiling knows which.
#pragma once

#include "linear/sm90/launch_e4m3.cuh"
#include "linear/sm90/resident.cuh"

namespace padfree {

template <typename T, typename Run>
cudaError_t withResidentEpilogue(TypeTag<HalfOperands<T>>, const Work& work, Run run) {
  if (work.rotary_features > 0) return run(TypeTag<Rotating>());
  return work.activation == Activation::kGelu ? run(TypeTag<InChunks<Activation::kGelu, true, false>>())
                                              : run(TypeTag<InChunks<Activation::kNone, true, false>>());
}

template <typename T, typename Run>
cudaError_t withResidentEpilogue(TypeTag<E4m3Operands<T>>, const Work& work, Run run) {
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
cudaError_t launchResidentIfThere(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  if constexpr (!hasResidentTile(Operands::scaled, kTokens)) {
    return cudaErrorInvalidValue;
  } else {
    return launch<Operands, ResidentShape<kTokens>>(p, tiling, stream, [](const Work& work, auto run) {
      return withResidentEpilogue(TypeTag<Operands>(), work, run);
    });
  }
}

template <typename Operands>
cudaError_t launchResident(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  switch (tiling.tokens) {
    case 128:
      return launchResidentIfThere<Operands, 128>(p, tiling, stream);
    case 144:
      return launchResidentIfThere<Operands, 144>(p, tiling, stream);
    case 160:
      return launchResidentIfThere<Operands, 160>(p, tiling, stream);
    case 176:
      return launchResidentIfThere<Operands, 176>(p, tiling, stream);
    case 192:
      return launchResidentIfThere<Operands, 192>(p, tiling, stream);
    case 208:
      return launchResidentIfThere<Operands, 208>(p, tiling, stream);
    case 224:
      return launchResidentIfThere<Operands, 224>(p, tiling, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launchResidentHalfSm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return launchResident<HalfOperands<T>>(p, tiling, stream);
}
template <typename T>
cudaError_t launchResidentE4m3Sm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return launchResident<E4m3Operands<T>>(p, tiling, stream);
}

}  // namespace padfree
