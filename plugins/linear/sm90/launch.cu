// SPDX-License-Identifier: Apache-2.0
// Launches of the Hopper kernels. There is no device code here.
#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/launch.h"
#include "common/tensor_map.h"
#include "linear/row_scale.cuh"
#include "linear/sm90/launch.h"
#include "linear/sm90/selected_kernel.h"

namespace padfree {
namespace {

// Features along the rows of W and y, the reduction along those of x: always the tensor's contiguous axis first.
bool encodeMaps(const SelectedKernel& kernel, const LinearParams& p, const LinearTiling& tiling, Maps& maps) {
  const auto width = [](int columns) { return static_cast<uint64_t>(columns); };
  const auto encode = [&](CUtensorMap& map, const void* data, int rows, int columns, int box_rows) {
    return encodeMatrix(map, p.type, data, width(rows), width(columns), box_rows, kPanelColumns);
  };
  const auto encodeResults = [&](CUtensorMap& map, int box_rows) {
    if (!p.gated) return encode(map, p.y, p.T, p.N, box_rows);
    return encodeMatrix(map, p.type, p.y, width(p.T), width(p.N / 2), box_rows, kPanelColumns / 2,
                        CU_TENSOR_MAP_SWIZZLE_64B);
  };
  maps.residual = {};
  return encode(maps.x, p.x, p.T, p.K, tiling.tokens / tiling.cluster_features) &&
         encode(
             maps.weight, p.weight, p.K, p.N,
             std::min(kLinearDepth, kLinearDepth * (tileFeatures(tiling) / kGroupFeatures) / tiling.cluster_tokens)) &&
         encodeResults(maps.y, kBoxTokens) && encodeResults(maps.y_at_once, kernel.boxes_at_once * kBoxTokens) &&
         (!p.residual || encode(maps.residual, p.residual, p.T, p.N, tiling.tokens));
}

// W [N,K] as blocks of 16 features; `paired`: the even ones of a block first. Rows of x and of W in boxes of a stage's
// depth; results in what there is of both types.
bool encodeMaps(const SelectedKernel& kernel, const LinearParams& p, const LinearTiling& tiling, E4m3Maps& maps) {
  const auto width = [](int columns) { return static_cast<uint64_t>(columns); };
  const uint64_t row = width(p.K), block = row * kPairBlock;
  const uint32_t blocks = tileFeatures(tiling) / kPairBlock / tiling.cluster_tokens;
  const auto encodeWeight = [&] {
    constexpr int kHalf = kPairBlock / 2;
    const uint64_t feature = kernel.paired ? 2 * row : row, half = kernel.paired ? row : kHalf * row;
    return encodeBoxes<4>(maps.weight, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight,
                          {row, kHalf, 2, width(p.N / kPairBlock)}, {feature, half, block},
                          {kE4m3Depth, kHalf, 2, blocks}, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  };
  const auto encodeResults = [&](CUtensorMap& map, int box_rows) {
    const int columns = p.gated ? p.N / 2 : p.N, box_columns = p.gated ? kPanelColumns / 2 : kPanelColumns;
    if (boxBytes(kernel.out) == kBoxBytes || (p.gated && !p.y_e4m3)) {
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
  const int rows_at_once = kernel.boxes_at_once * kBoxTokens;
  const bool leaves_alone = leavesInChunks(kernel.out);
  return encodeByteMatrix(maps.x, p.x, width(p.T), row, tiling.tokens / tiling.cluster_features, kE4m3Depth) &&
         encodeWeight() &&
         ((!leaves_alone && !p.y) ||
          (encodeResults(maps.y, kBoxTokens) && encodeResults(maps.y_at_once, rows_at_once))) &&
         (leaves_alone || !p.y_e4m3 ||
          (encodeBytes(maps.y_e4m3, kBoxTokens) && encodeBytes(maps.y_e4m3_at_once, rows_at_once))) &&
         (!p.residual ||
          encodeMatrix(maps.residual, p.type, p.residual, width(p.T), width(p.N), tiling.tokens, kPanelColumns));
}

// The logarithm of a power of two.
int logarithm(int value) {
  int result = 0;
  while (1 << result < value) ++result;
  return result;
}

template <typename KernelMaps>
cudaError_t launchWithMaps(const SelectedKernel& kernel, const LinearParams& p, const LinearTiling& tiling, Work& work,
                           const cudaLaunchConfig_t& config) {
  KernelMaps maps;
  if (!encodeMaps(kernel, p, tiling, maps)) return mapError();
  const cudaError_t status =
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit);
  void* arguments[] = {&work, &maps};
  return status == cudaSuccess ? cudaLaunchKernelExC(&config, kernel.function, arguments) : status;
}

}  // namespace

cudaError_t makeWork(const LinearParams& p, const LinearTiling& tiling, Work& work) {
  int multiprocessors = 0;
  const cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  work = {};
  work.bias = p.bias;
  work.normed = p.x_moments ? Normed::kInput : p.residual_moments ? Normed::kResidual : Normed::kNothing;
  work.residual_scale = p.residual_moments ? p.residual_scale : p.head_scale;
  setNorm(work, p);
  work.moments_out = reinterpret_cast<float2*>(p.moments);
  work.T = p.T;
  work.N = p.N;
  work.stages = stagesOf(p);
  work.activation = p.activation;
  work.residual = p.residual != nullptr;
  work.rms = p.rms;
  work.gated = p.gated;
  work.rotary_features = p.rotary_features;
  work.head_epsilon = p.head_epsilon;
  work.wide_heads = p.wide_heads;
  work.positions = p.positions;
  work.frequencies = p.frequencies;
  work.tiling = tiling;
  work.scale = p.scale;
  work.per_y_scale = p.y_e4m3 ? 1.f / p.y_scale : 1.f;
  work.writes_y = p.y != nullptr;
  work.writes_e4m3 = p.y_e4m3 != nullptr;
  work.tiling.parts = partsOf(p, tiling);
  work.parts_shift = logarithm(work.tiling.parts);
  work.features_shift = logarithm(tiling.cluster_features);
  work.shared_shift = work.features_shift + logarithm(tiling.cluster_tokens);
  for (int i = 0; i < tiling.cluster_tokens; ++i) work.same_features |= 1u << (i << work.features_shift);
  work.owned_shift = tiling.tokens >= work.tiling.parts * 2 * kBoxTokens ? 1 : 0;
  if (isResident(tiling)) {
    work.feature_tiles = ceilDiv(p.N, kResidentFeatures);
    work.ranges = residentCut(tiling, p.T, p.N, multiprocessors).ranges;
    work.feature_clusters = work.ranges / tiling.cluster_features;
  } else {
    work.feature_clusters = ceilDiv(p.N, kLinearFeatures * tiling.cluster_features);
  }
  work.per_feature_cluster = ceilDiv<uint64_t>(uint64_t{1} << 32, work.feature_clusters);
  work.clusters = work.feature_clusters * ceilDiv(p.T, tiling.tokens * tiling.cluster_tokens);
  return cudaSuccess;
}

cudaError_t launchSelected(const SelectedKernel& kernel, const LinearParams& p, const LinearTiling& tiling, Work work,
                           cudaStream_t stream) {
  if (!kernel.function) return cudaErrorInvalidValue;
  int multiprocessors = 0;
  const cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  const int cluster_size = clusterBlocks(work.tiling);
  // Blocks that share a tile leave its sums where the next tile's stages would be: they stay for one.
  const int at_once = work.tiling.parts > 1
                          ? work.clusters
                          : std::min(work.clusters, linearClustersAtOnce(work.tiling, multiprocessors));
  work.paced = at_once * cluster_size > multiprocessors / 2;
  work.leaves_room = tiling.tokens < kLargeTokens && !work.paced;
  work.ring_stages = kernel.ring_stages;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster_size), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = at_once * cluster_size;
  config.blockDim = kLinearThreads;
  config.dynamicSmemBytes = kernel.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = overlapsLaunches() ? 2 : 1;
  return p.scale ? launchWithMaps<E4m3Maps>(kernel, p, tiling, work, config)
                 : launchWithMaps<Maps>(kernel, p, tiling, work, config);
}

}  // namespace padfree
