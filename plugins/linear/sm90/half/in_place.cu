// SPDX-License-Identifier: Apache-2.0
#include "linear/sm90/launch.cuh"

namespace padfree {

template cudaError_t launchHalfSm90<EpilogueKind::kInPlace, PADFREE_ELEMENT>(const LinearParams&, const LinearTiling&,
                                                                             cudaStream_t);

}  // namespace padfree
