// SPDX-License-Identifier: Apache-2.0
// Which kernel a GEMM takes. Included where kernels are compiled for one type and some epilogues.
#pragma once

#include <type_traits>

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
    constexpr int kHalfBytes = normsWideHeads<Epilogue>(S::kTokens) ? HeadHalves<S::kTokens>::kBytes : 0;
    static_assert(kHalfBytes == 0 || S::sharedBytes(out, 0) + kHalfBytes <= kSharedLimit);
    const auto kernel = kernelOf(TypeTag<Operands>(), TypeTag<S>(), tag);
    return SelectedKernel{reinterpret_cast<const void*>(kernel),
                          out,
                          Epilogue::paired,
                          S::boxesAtOnce(out, Operands::scaled),
                          S::stages(out, work.stages),
                          S::sharedBytes(out, work.stages) + kHalfBytes};
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

// Calls select(std::integral_constant<int, tokens>()), for tiles of a multiple of 16 tokens; no kernel has others.
template <int kTokens = kMaxLinearTokens, typename Select>
SelectedKernel selectByTokens(int tokens, const Select& select) {
  if constexpr (kTokens > 0) {
    return tokens == kTokens ? select(std::integral_constant<int, kTokens>())
                             : selectByTokens<kTokens - kBoxTokens>(tokens, select);
  }
  return {};
}

template <EpilogueKind kKind, typename Operands>
SelectedKernel selectKernel(const Work& work) {
  return selectByTokens(work.tiling.tokens,
                        [&](auto tokens) { return selectIfThere<kKind, Operands, decltype(tokens)::value>(work); });
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
