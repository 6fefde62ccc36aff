// SPDX-License-Identifier: Apache-2.0
#include "common/row_copy.cuh"
#include "pack/launch.h"

namespace padfree {
namespace {

struct SlotOfToken {
  const int* token_index;
  int64_t num_slots;

  __device__ int64_t operator()(int64_t t) const {
    const int64_t slot = token_index[t];
    return slot < num_slots ? slot : -1;
  }
};

}  // namespace

cudaError_t launchPack(const PackParams& params, cudaStream_t stream) {
  return launchRowCopy(params.x, params.y, params.T, params.row_bytes,
                       SlotOfToken{params.token_index, params.num_slots}, stream);
}

}  // namespace padfree
