// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "linear/mma/menu.h"

namespace padfree {

// A GEMM with operands of this kind and a tiling, after launchLinear's checks.
cudaError_t launchMmaFp16(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream);
cudaError_t launchMmaBf16(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream);
cudaError_t launchMmaE4m3Fp16(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream);
cudaError_t launchMmaE4m3Bf16(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream);
cudaError_t launchMmaInt8Fp16(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream);
cudaError_t launchMmaInt8Bf16(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream);

}  // namespace padfree
