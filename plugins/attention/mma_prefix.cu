// SPDX-License-Identifier: Apache-2.0
#include "attention/mma_prefix_kernel.cuh"

namespace padfree {

template cudaError_t launchMmaPrefix<PADFREE_ELEMENT>(const AttentionParams&, cudaStream_t);

}  // namespace padfree
