// SPDX-License-Identifier: Apache-2.0
// Builds with PADFREE_PERTURB delay warps at random wherever they wait for each other, so that an order which is only
// likely, not enforced, shows as a wrong result in the kernel tests. Other builds do nothing here.
#pragma once

#include <cuda_runtime.h>

namespace padfree {

// Up to 8 us in one of eight calls, up to 130 us in one of 512. The same for the lanes of a warp that call together.
__device__ inline void perturb() {
#ifdef PADFREE_PERTURB
  unsigned random = static_cast<unsigned>(clock64()) * 0x9e3779b1u ^ (threadIdx.x / 32 + blockIdx.x * 32) * 0x85ebca6bu;
  random ^= random >> 15;
  random *= 0xc2b2ae35u;
  random ^= random >> 13;
  if ((random & 7) == 0) __nanosleep(random >> 8 & 0x1fff);
  if ((random & 511) == 0) __nanosleep(random >> 8 & 0x1ffff);
  __syncwarp(__activemask());
#endif
}

}  // namespace padfree
