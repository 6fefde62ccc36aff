// SPDX-License-Identifier: Apache-2.0
#include "common/row_copy.cuh"
#include "pack/launch.h"

namespace padfree {
namespace {

struct SlotsOfTokens {
  const int* token_index;
  int64_t num_slots;
  int T;

  __device__ int64_t operator()(int64_t first) const {
    const int64_t token = first + threadIdx.x % kWarpSize;
    const int slot = token < T ? token_index[token] : -1;
    return slot < num_slots ? slot : -1;
  }
};

}  // namespace

cudaError_t launchPack(const PackParams& params, cudaStream_t stream) {
  return launchRowCopy(params.x, params.y, params.T, params.row_bytes,
                       SlotsOfTokens{params.token_index, params.num_slots, params.T}, stream);
}

}  // namespace padfree
