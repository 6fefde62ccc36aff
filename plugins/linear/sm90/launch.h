// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "linear/menu.h"
#include "linear/tiling.h"

namespace padfree {

// The Hopper kernel for one kind of epilogue and one type of results, after launchLinear's checks. Compiling all takes
// minutes: the files of the folders half, e4m3 and resident have a part each.
template <EpilogueKind kKind, typename T>
cudaError_t launchHalfSm90(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);

// The same with e4m3 operands.
template <EpilogueKind kKind, typename T>
cudaError_t launchE4m3Sm90(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);

// The same with resident input.
template <typename T>
cudaError_t launchResidentHalfSm90(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);
template <typename T>
cudaError_t launchResidentE4m3Sm90(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);

}  // namespace padfree
