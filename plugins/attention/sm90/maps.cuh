// SPDX-License-Identifier: Apache-2.0
// Q, K and V as TMA sees them, for the Hopper attention kernels.
#pragma once

#include "attention/launch.h"
#include "common/integers.h"
#include "common/panel.cuh"
#include "common/ptx/barriers.cuh"
#include "common/ptx/tma.cuh"
#include "common/tensor_map.h"

namespace padfree {

constexpr int kBoxRows = 32;  // rows of the small boxes that fetch the ends of sequences

struct AttentionMaps {
  CUtensorMap whole[3], part[3];  // q, k, v as [T, H, D], in boxes of a whole tile's rows and of kBoxRows
};

// Copies `rows` rows of a head to shared memory: in one box of kWhole rows, or as many small ones as it takes.
// Announces the bytes at the barrier, which counts as its arrival. One thread.
template <typename S, int kWhole>
__device__ inline void loadRows(const AttentionMaps& maps, int operand, unsigned target, int rows, int head, int token,
                                uint64_t* barrier) {
  if (rows > kWhole - kBoxRows) {
    barrierExpect(barrier, kWhole * S::kRowBytes * S::kPanels);
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
      copyBox(target + panel * (kWhole * S::kRowBytes), maps.whole[operand], panel * S::kColumns, head, token, barrier);
    }
    return;
  }
  const int boxes = ceilDiv(static_cast<unsigned>(rows), static_cast<unsigned>(kBoxRows));
  barrierExpect(barrier, boxes * kBoxRows * S::kRowBytes * S::kPanels);
#pragma unroll 1
  for (int box = 0; box < boxes; ++box) {
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
      copyBox(target + (panel * kWhole + box * kBoxRows) * S::kRowBytes, maps.part[operand], panel * S::kColumns, head,
              token + box * kBoxRows, barrier);
    }
  }
}

// An operand as [T, heads, D], in boxes of `rows` tokens, one head and the columns of a panel of S. Columns from D on
// arrive as zeros.
template <typename S>
bool encodeOperand(const AttentionParams& params, const AttentionOperand& operand, unsigned rows, int heads,
                   CUtensorMap& map) {
  const auto size = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const int64_t element = sizeOf(params.type);
  return encodeBoxes<3>(map, elementOf(params.type), operand.data, {size(params.D), size(heads), size(params.T)},
                        {size(operand.head_stride * element), size(operand.token_stride * element)},
                        {S::kColumns, 1, rows}, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                        S::kRowBytes == kPanelRowBytes ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

// Maps for tiles of S: kTaskRows rows of Q and key_rows rows of K and V. False where the driver refuses.
template <typename S>
bool encodeMaps(const AttentionParams& params, unsigned key_rows, AttentionMaps& maps) {
  const AttentionOperand* const operands[] = {&params.q, &params.k, &params.v};
  for (int i = 0; i < 3; ++i) {
    const int heads = i == 0 ? params.H : params.kv_heads;
    if (!encodeOperand<S>(params, *operands[i], i == 0 ? kTaskRows : key_rows, heads, maps.whole[i]) ||
        !encodeOperand<S>(params, *operands[i], kBoxRows, heads, maps.part[i])) {
      return false;
    }
  }
  return true;
}

}  // namespace padfree
