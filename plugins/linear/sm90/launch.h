// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "linear/tiling.h"

namespace padfree {

// The Hopper kernel for one type of results, after launchLinear's checks; with e4m3 operands in launchE4m3Sm90. Each
// type has a file of its own, kernel_*.cu: compiling takes minutes.
template <typename T>
cudaError_t launchLinearSm90(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);
template <typename T>
cudaError_t launchE4m3Sm90(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);

// The same with resident input, of either type of operands.
template <typename T>
cudaError_t launchResidentSm90(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);

}  // namespace padfree
