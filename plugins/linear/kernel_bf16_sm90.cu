// SPDX-License-Identifier: Apache-2.0
#include "linear/sm90_kernel.cuh"

namespace padfree {

template cudaError_t launchTileSm90<__nv_bfloat16>(const LinearParams&, const LinearTile&, cudaStream_t);

}  // namespace padfree
