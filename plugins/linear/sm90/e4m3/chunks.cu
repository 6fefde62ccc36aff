// SPDX-License-Identifier: Apache-2.0
#include "linear/sm90/launch_e4m3.cuh"

namespace padfree {

template cudaError_t launchE4m3Sm90<EpilogueKind::kChunks, PADFREE_ELEMENT>(const LinearParams&, const LinearTiling&,
                                                                            cudaStream_t);

}  // namespace padfree
