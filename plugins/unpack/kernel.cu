// SPDX-License-Identifier: Apache-2.0
// Every slot looks its token up in the ascending token_index, so that no byte is written twice and none needs clearing
// first.
#include "common/row_copy.cuh"
#include "unpack/launch.h"

namespace padfree {
namespace {

struct TokenOfSlot {
  const int* token_index;
  int T;

  __device__ int64_t operator()(int64_t slot) const {
    if (T == 0) return -1;
    // As unsigned numbers the -1 of filler tokens come last, and the list ascends.
    const auto key = [&](int t) { return static_cast<unsigned>(token_index[t]); };
    const int t = warpFindLast(T, static_cast<unsigned>(slot), key);
    return token_index[t] == slot ? t : -1;
  }
};

}  // namespace

cudaError_t launchUnpack(const UnpackParams& params, cudaStream_t stream) {
  return launchRowCopy(params.packed, params.y, params.num_slots, params.row_bytes,
                       TokenOfSlot{params.token_index, params.T}, stream);
}

}  // namespace padfree
