// SPDX-License-Identifier: Apache-2.0
#include "attention/mma_kernel.cuh"

namespace padfree {

template cudaError_t launchMma<__nv_bfloat16>(const AttentionParams&, cudaStream_t);

}  // namespace padfree
