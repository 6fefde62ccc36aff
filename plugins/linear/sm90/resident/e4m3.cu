// SPDX-License-Identifier: Apache-2.0
#include "linear/sm90/launch_resident.cuh"

namespace padfree {

template cudaError_t launchResidentE4m3Sm90<PADFREE_ELEMENT>(const LinearParams&, const LinearTiling&, cudaStream_t);

}  // namespace padfree
