// SPDX-License-Identifier: Apache-2.0
#include "linear/mma/kernel.cuh"
#include "linear/mma/launch.h"

namespace padfree {

cudaError_t launchMmaE4m3Bf16(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream) {
  return launchMma<MmaE4m3<__nv_bfloat16>>(params, tiling, stream);
}

}  // namespace padfree
