// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/ring_kernel.cuh"

namespace padfree {

template cudaError_t launchRingSm90<PADFREE_ELEMENT>(const AttentionParams&, cudaStream_t);

}  // namespace padfree
