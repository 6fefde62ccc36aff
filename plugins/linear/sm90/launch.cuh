// SPDX-License-Identifier: Apache-2.0
// Which kernel a GEMM takes. Included where kernels are compiled for one type and some epilogues.
#pragma once

#include "common/launch.h"
#include "linear/sm90/kernel.cuh"
#include "linear/sm90/launch.h"
#include "linear/sm90/operands.cuh"
#include "linear/sm90/selected_kernel.h"

namespace padfree {

// The epilogues of GEMMs with these operands: for e4m3 others (launch_e4m3.cuh).
template <bool kMayShare, typename T, EpilogueKind kKind, typename Run>
SelectedKernel withEpilogueOf(TypeTag<HalfOperands<T>>, EpilogueKindTag<kKind> kind, const Work& work, Run run) {
  return withEpilogue<kMayShare>(kind, work, run);
}
// Which kernel has tiles of this shape: for resident input it is another (launch_resident.cuh).
template <typename Operands, int kTokens, typename Epilogue>
auto kernelOf(TypeTag<Operands>, TypeTag<Shape<kTokens>>, TypeTag<Epilogue>) {
  return linearSm90Kernel<Operands, kTokens, Epilogue>;
}

// To be called with the tag of an epilogue.
template <typename Operands, typename S>
auto selectFor(const Work& work) {
  return [&work](auto tag) {
    using Epilogue = typename decltype(tag)::Type;
    constexpr Out out = Epilogue::out;
    const auto kernel = kernelOf(TypeTag<Operands>(), TypeTag<S>(), tag);
    return SelectedKernel{reinterpret_cast<const void*>(kernel),
                          out,
                          Epilogue::paired,
                          S::boxesAtOnce(out, Operands::scaled),
                          S::stages(out, work.stages),
                          S::sharedBytes(out, work.stages)};
  };
}

template <EpilogueKind kKind, typename Operands, int kTokens>
SelectedKernel selectIfThere(const Work& work) {
  constexpr bool kMayShare = hasSharedTile(kKind, Operands::scaled, kTokens);
  if constexpr (!kMayShare && !hasTile(kKind, Operands::scaled, kTokens)) {
    return {};
  } else {
    return withEpilogueOf<kMayShare>(TypeTag<Operands>(), EpilogueKindTag<kKind>(), work,
                                     selectFor<Operands, Shape<kTokens>>(work));
  }
}

// Of the sizes of tiles that there are for these operands and this kind of epilogue.
template <EpilogueKind kKind, typename Operands>
SelectedKernel selectKernel(const Work& work) {
  switch (work.tiling.tokens) {
    case 16:
      return selectIfThere<kKind, Operands, 16>(work);
    case 32:
      return selectIfThere<kKind, Operands, 32>(work);
    case 48:
      return selectIfThere<kKind, Operands, 48>(work);
    case 64:
      return selectIfThere<kKind, Operands, 64>(work);
    case 80:
      return selectIfThere<kKind, Operands, 80>(work);
    case 96:
      return selectIfThere<kKind, Operands, 96>(work);
    case 112:
      return selectIfThere<kKind, Operands, 112>(work);
    case 128:
      return selectIfThere<kKind, Operands, 128>(work);
    case 144:
      return selectIfThere<kKind, Operands, 144>(work);
    case 160:
      return selectIfThere<kKind, Operands, 160>(work);
    case 176:
      return selectIfThere<kKind, Operands, 176>(work);
    case 192:
      return selectIfThere<kKind, Operands, 192>(work);
    case 208:
      return selectIfThere<kKind, Operands, 208>(work);
    case 224:
      return selectIfThere<kKind, Operands, 224>(work);
    case 240:
      return selectIfThere<kKind, Operands, 240>(work);
    case 256:
      return selectIfThere<kKind, Operands, 256>(work);
  }
  return {};
}

// select(work) gives the kernel.
template <typename Select>
cudaError_t launch(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream, Select select) {
  Work work;
  const cudaError_t status = makeWork(p, tiling, work);
  return status == cudaSuccess ? launchSelected(select(work), p, tiling, work, stream) : status;
}

template <EpilogueKind kKind, typename T>
cudaError_t launchHalfSm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return launch(p, tiling, stream, selectKernel<kKind, HalfOperands<T>>);
}

}  // namespace padfree
