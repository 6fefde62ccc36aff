// SPDX-License-Identifier: Apache-2.0
// Launches of the Hopper kernel with operands in e4m3. Included where it is compiled for one type of results.
#pragma once

#include "linear/sm90/epilogue_e4m3.cuh"
#include "linear/sm90/launch.cuh"
#include "linear/sm90/operands_e4m3.cuh"

namespace padfree {

// W [N,K] as blocks of 16 features; `paired`: the even ones of a block first. Rows of x and of W in boxes of a stage's
// depth; results in what there is of both types.
template <typename Epilogue>
bool encodeMaps(TypeTag<Epilogue>, const LinearParams& p, const LinearTiling& tiling, int boxes_at_once,
                E4m3Maps& maps) {
  const auto width = [](int columns) { return static_cast<uint64_t>(columns); };
  const uint64_t row = width(p.K), block = row * kPairBlock;
  const uint32_t blocks = tileFeatures(tiling) / kPairBlock / tiling.cluster_tokens;
  const auto encodeWeight = [&] {
    constexpr int kHalf = kPairBlock / 2;
    const uint64_t feature = Epilogue::paired ? 2 * row : row, half = Epilogue::paired ? row : kHalf * row;
    return encodeBoxes<4>(maps.weight, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight,
                          {row, kHalf, 2, width(p.N / kPairBlock)}, {feature, half, block},
                          {kE4m3Depth, kHalf, 2, blocks}, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  };
  const auto encodeResults = [&](CUtensorMap& map, int box_rows) {
    const int columns = p.gated ? p.N / 2 : p.N, box_columns = p.gated ? kPanelColumns / 2 : kPanelColumns;
    if (boxBytes(Epilogue::out) == kBoxBytes || (p.gated && !p.y_e4m3)) {
      return encodeMatrix(map, p.type, p.y, width(p.T), width(columns), box_rows, box_columns,
                          p.gated ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
    }
    return encodeByteMatrix(map, p.y_e4m3, width(p.T), width(columns), box_rows, box_columns,
                            p.gated ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_64B);
  };
  const auto encodeBytes = [&](CUtensorMap& map, int box_rows) {
    return encodeByteMatrix(map, p.y_e4m3, width(p.T), width(p.N), box_rows, kPanelColumns, CU_TENSOR_MAP_SWIZZLE_64B);
  };
  maps.residual = maps.y = maps.y_at_once = maps.y_e4m3 = maps.y_e4m3_at_once = {};
  const int rows_at_once = boxes_at_once * kBoxTokens;
  const bool leaves_alone = leavesInChunks(Epilogue::out);
  return encodeByteMatrix(maps.x, p.x, width(p.T), row, tiling.tokens / tiling.cluster_features, kE4m3Depth) &&
         encodeWeight() &&
         ((!leaves_alone && !p.y) ||
          (encodeResults(maps.y, kBoxTokens) && encodeResults(maps.y_at_once, rows_at_once))) &&
         (leaves_alone || !p.y_e4m3 ||
          (encodeBytes(maps.y_e4m3, kBoxTokens) && encodeBytes(maps.y_e4m3_at_once, rows_at_once))) &&
         (!p.residual ||
          encodeMatrix(maps.residual, p.type, p.residual, width(p.T), width(p.N), tiling.tokens, kPanelColumns));
}

template <bool kMayShare, typename T, EpilogueKind kKind, typename Run>
cudaError_t withEpilogueOf(TypeTag<E4m3Operands<T>>, EpilogueKindTag<kKind> kind, const Work& work, Run run) {
  return withE4m3Epilogue<kMayShare>(kind, work, run);
}

template <EpilogueKind kKind, typename T>
cudaError_t launchE4m3Sm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return launchTokens<kKind, E4m3Operands<T>>(p, tiling, stream);
}

}  // namespace padfree
