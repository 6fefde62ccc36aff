// SPDX-License-Identifier: Apache-2.0
#include "linear/sm90/launch.cuh"

namespace padfree {

template cudaError_t launchHalfSm90<Finish::kAnyPairs, half>(const LinearParams&, const LinearTiling&, cudaStream_t);
template cudaError_t launchHalfSm90<Finish::kAnyInPlace, half>(const LinearParams&, const LinearTiling&, cudaStream_t);
template cudaError_t launchHalfSm90<Finish::kActivated, half>(const LinearParams&, const LinearTiling&, cudaStream_t);

}  // namespace padfree
