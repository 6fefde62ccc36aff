// SPDX-License-Identifier: Apache-2.0
#include "attention/mma_kernel.cuh"

namespace padfree {

template cudaError_t launchMma<PADFREE_ELEMENT>(const AttentionParams&, cudaStream_t);

}  // namespace padfree
