// SPDX-License-Identifier: Apache-2.0
// A warp looks its first slot up in the ascending token_index and finds those of its other slots right after, so that
// no byte is written twice and none needs clearing first.
#include "common/row_copy.cuh"
#include "unpack/launch.h"

namespace padfree {
namespace {

struct TokensOfSlots {
  const int* token_index;
  int T;

  __device__ int64_t operator()(int64_t first) const {
    // As unsigned numbers the -1 of filler tokens come last, and the list ascends.
    const auto key = [&](int t) { return static_cast<unsigned>(token_index[t]); };
    const unsigned lane = threadIdx.x % kWarpSize;
    const unsigned slot = static_cast<unsigned>(first);
    if (T == 0) return -1;
    int token = warpFindLast(T, slot, key);
    if (key(token) < slot) ++token;  // now the first token at or after the first slot
    // Which of the 32 slots from the first have a token; tokens ascend by at least one slot, so that 32 of them cover
    // all.
    const unsigned slot_offset = token + static_cast<int>(lane) < T ? key(token + lane) - slot : kWarpSize;
    const unsigned slot_mask = __reduce_or_sync(kFullMask, slot_offset < kWarpSize ? 1u << slot_offset : 0u);
    return slot_mask >> lane & 1 ? token + __popc(slot_mask & ((1u << lane) - 1)) : -1;
  }
};

}  // namespace

cudaError_t launchUnpack(const UnpackParams& params, cudaStream_t stream) {
  return launchRowCopy(params.packed, params.y, params.num_slots, params.row_bytes,
                       TokensOfSlots{params.token_index, params.T}, stream);
}

}  // namespace padfree
