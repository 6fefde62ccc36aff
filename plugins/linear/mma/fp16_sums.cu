// SPDX-License-Identifier: Apache-2.0
#include "linear/mma/kernel.cuh"
#include "linear/mma/launch.h"

namespace padfree {

template cudaError_t launchMma<MmaFp16Sums>(const LinearParams&, const MmaTiling&, cudaStream_t);

}  // namespace padfree
