// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "linear/launch.h"

namespace padfree {

// Tiles of 128 tokens and 128 features by mma.sync, after launchLinear's checks: fp16 and bf16 on compute
// capability 8.0 and newer, e4m3 on 8.9 and newer; elsewhere cudaErrorNoKernelImageForDevice.
cudaError_t launchMmaKernel(const LinearParams& params, cudaStream_t stream);

}  // namespace padfree
