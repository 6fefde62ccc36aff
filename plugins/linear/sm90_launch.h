// SPDX-License-Identifier: Apache-2.0
// The Hopper kernel for one element type. Each is compiled in a file of its own: it takes minutes.
#pragma once

#include "linear/kernel.h"

namespace padfree {

// As launchLinearSm90, after its checks.
template <typename T>
cudaError_t launchTileSm90(const LinearParams& params, const LinearTile& tile, cudaStream_t stream);

}  // namespace padfree
