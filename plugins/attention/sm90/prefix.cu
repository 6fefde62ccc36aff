// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/prefix_kernel.cuh"

namespace padfree {

template cudaError_t launchPrefixSm90<PADFREE_ELEMENT>(const AttentionParams&, cudaStream_t);

}  // namespace padfree
