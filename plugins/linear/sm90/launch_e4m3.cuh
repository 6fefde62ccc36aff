// SPDX-License-Identifier: Apache-2.0
// Launches of the Hopper kernel with operands in e4m3. Included where it is compiled for one type of results.
#pragma once

#include "linear/sm90/epilogue_e4m3.cuh"
#include "linear/sm90/launch.cuh"
#include "linear/sm90/operands_e4m3.cuh"

namespace padfree {

template <bool kMayShare, typename T, EpilogueKind kKind, typename Run>
SelectedKernel withEpilogueOf(TypeTag<E4m3Operands<T>>, EpilogueKindTag<kKind> kind, const Work& work, Run run) {
  return withE4m3Epilogue<kMayShare>(kind, work, run);
}

template <EpilogueKind kKind, typename T>
cudaError_t launchE4m3Sm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return launch(p, tiling, stream, selectKernel<kKind, E4m3Operands<T>>);
}

}  // namespace padfree
