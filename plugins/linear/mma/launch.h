// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "linear/mma/menu.h"

namespace padfree {

// What operands.cuh says of operands, for results of type T.
template <typename T>
struct MmaHalf;
struct MmaFp16Sums;
template <typename T, typename Sum>
struct MmaBytes;
template <typename T>
using MmaE4m3 = MmaBytes<T, float>;
template <typename T>
using MmaInt8 = MmaBytes<T, int>;

// A GEMM with operands of this kind and a tiling, after launchLinear's checks.
template <typename Operands>
cudaError_t launchMma(const LinearParams& params, const MmaTiling& tiling, cudaStream_t stream);

}  // namespace padfree
