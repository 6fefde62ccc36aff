// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "linear/tiling.h"

namespace padfree {

// The Hopper kernel for one element type, after launchLinear's checks. kernel_fp16.cu and kernel_bf16.cu hold
// one type each: compiling takes minutes.
template <typename T>
cudaError_t launchLinearSm90(const LinearParams& params, const LinearTiling& tiling, cudaStream_t stream);

}  // namespace padfree
