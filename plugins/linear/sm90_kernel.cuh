// SPDX-License-Identifier: Apache-2.0
// y = activation(x W + bias) + residual for Hopper (sm_90a). The product is computed transposed: features are the 64
// rows of a matrix instruction, tokens its columns, so that tiles of any multiple of 16 tokens exist and waves of tiles
// can be filled for any number of tokens. Blocks stay and take tile after tile: one warp fetches weights and one input
// (TMA, shared by the blocks of a cluster), two warpgroups of 64 features each multiply. Where tiles are fewer than
// multiprocessors, blocks of a cluster share a tile, each a part of the reduction.
#pragma once

#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "common/tensor_map.h"
#include "linear/consumer.cuh"
#include "linear/fetch.cuh"
#include "linear/finish.cuh"
#include "linear/kernel.h"
#include "linear/sm90_launch.h"

namespace padfree {

template <typename T, int kTokens, typename Kind>
__global__ void __launch_bounds__(kLinearThreads, 1)
    linearSm90Kernel(const __grid_constant__ Work work, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shape<kTokens>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  __shared__ Barriers barriers;
  const unsigned stages = sharedAddress(shared_bytes);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.x, &maps.weight, &maps.y_at_once}) prefetchMap(*map);
    if (Kind::out != Out::kStages) prefetchMap(maps.y);
    if (work.residual) prefetchMap(maps.residual);
    const unsigned warps = work.tile.cluster_features * work.tile.cluster_tokens * kGroups * kWarps;
    for (int stage = 0; stage < work.ring_stages; ++stage) {
      barrierInit(&barriers.full[stage], 2);  // weights and input
      barrierInit(&barriers.empty[stage], warps);
    }
    for (uint64_t& barrier : barriers.residual) barrierInit(&barrier, 1);
    barrierInit(&barriers.scales_full, kScaleThreads);
    barrierInit(&barriers.scales_empty, kGroups * kWarps);
    fenceBarrierInit();
    fenceAsyncProxy();
  }
  clusterSync();
  const Position at(work);
  unsigned char* const out = shared_bytes + work.ring_stages * S::kStageBytes;
  float2* const scales = reinterpret_cast<float2*>(out + S::outBytes(Kind::out));
  if (threadIdx.x < kWarpgroup) {
    shrinkRegisters<56>();
    if (threadIdx.x == 0) fetchWeight<kTokens, Kind::out>(work, maps, at, barriers, stages);
    if (threadIdx.x == kWarpSize) fetchInput<kTokens, Kind::out>(work, maps, at, barriers, stages);
    const int thread = threadIdx.x - (kWarpgroup - kScaleThreads);
    const Kind kind(work);
    if (kind.normed && thread >= 0) fetchScales<kTokens>(work, at, barriers, scales, thread);
    __syncwarp();
    if (kind.shares_tile) clusterSyncMemory();  // with the consumers' gather()
  } else {
    growRegisters<224>();
    waitForPriorGrids();
    Consumer<T, kTokens, Kind>(work, maps, barriers, shared_bytes, out, scales).run(at);
    if (threadIdx.x % kWarpgroup == 0) waitStoresRead<0>();
  }
  __syncwarp();
  clusterSync();  // no block leaves while another may still write to it
#endif
}

// Features along the rows of W and y, the reduction along those of x: always the tensor's contiguous axis first.
inline bool encodeMaps(const LinearParams& p, const LinearTile& tile, int boxes_at_once, Maps& maps) {
  const auto width = [](int columns) { return static_cast<uint64_t>(columns); };
  const auto encode = [&](CUtensorMap& map, const void* data, int rows, int columns, int box_rows) {
    return encodeMatrix(map, p.type, data, width(rows), width(columns), box_rows, kPanelColumns);
  };
  maps.residual = {};
  return encode(maps.x, p.x, p.T, p.K, tile.tokens / tile.cluster_features) &&
         encode(maps.weight, p.weight, p.K, p.N, std::min(kDepth, kDepth * kGroups / tile.cluster_tokens)) &&
         encode(maps.y, p.y, p.T, p.N, kBoxTokens) &&
         encode(maps.y_at_once, p.y, p.T, p.N, boxes_at_once * kBoxTokens) &&
         (!p.residual || encode(maps.residual, p.residual, p.T, p.N, tile.tokens));
}

// Of a power of two.
inline int logarithm(int value) {
  int result = 0;
  while (1 << result < value) ++result;
  return result;
}

inline Work makeWork(const LinearParams& p, const LinearTile& tile) {
  Work work{};
  work.bias = p.bias;
  work.normed = p.x_moments ? Normed::kInput : p.residual_moments ? Normed::kResidual : Normed::kNothing;
  work.column_sums = p.x_moments ? p.column_sums : nullptr;
  work.residual_scale = p.residual_moments ? p.residual_scale : nullptr;
  work.moments_in = reinterpret_cast<const float2*>(p.x_moments ? p.x_moments : p.residual_moments);
  work.groups_in = (p.x_moments ? p.K : p.N) / kGroupFeatures;
  work.per_group = work.groups_in > 0 ? 1.f / work.groups_in : 0.f;
  work.epsilon = p.x_moments ? p.x_epsilon : p.residual_epsilon;
  work.moments_out = reinterpret_cast<float2*>(p.moments);
  work.T = p.T;
  work.N = p.N;
  work.stages = ceilDiv(p.K, kDepth);
  work.activation = p.activation;
  work.residual = p.residual != nullptr;
  work.tile = tile;
  while (work.tile.parts > work.stages) work.tile.parts /= 2;
  work.parts_shift = logarithm(work.tile.parts);
  work.features_shift = logarithm(tile.cluster_features);
  work.shared_shift = work.features_shift + logarithm(tile.cluster_tokens);
  for (int i = 0; i < tile.cluster_tokens; ++i) work.same_features |= 1u << (i << work.features_shift);
  work.owned_shift = tile.tokens >= work.tile.parts * 2 * kBoxTokens ? 1 : 0;
  work.feature_clusters = ceilDiv(p.N, kLinearFeatures * tile.cluster_features);
  work.per_feature_cluster = ceilDiv<uint64_t>(uint64_t{1} << 32, work.feature_clusters);
  work.clusters = work.feature_clusters * ceilDiv(p.T, tile.tokens * tile.cluster_tokens);
  return work;
}

template <typename T, int kTokens>
cudaError_t launch(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
  using S = Shape<kTokens>;
  int multiprocessors = 0;
  const cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  Work work = makeWork(p, tile);
  const int cluster_size = clusterBlocks(work.tile);
  // Blocks that share a tile leave its sums where the next tile's stages would be: they stay for one.
  const int at_once =
      sharesTile(work) ? work.clusters : std::min(work.clusters, linearClustersAtOnce(work.tile, multiprocessors));
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster_size), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = at_once * cluster_size;
  work.paced = at_once * cluster_size > multiprocessors / 2;
  config.blockDim = kLinearThreads;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = overlapsLaunches() ? 2 : 1;
  return withKind(work, [&](auto of) {
    using Kind = typename decltype(of)::type;
    const auto kernel = linearSm90Kernel<T, kTokens, Kind>;
    Maps maps;
    if (!encodeMaps(p, tile, S::boxesAtOnce(Kind::out), maps)) return cudaErrorInvalidValue;
    work.ring_stages = S::stages(Kind::out);
    config.dynamicSmemBytes = S::sharedBytes(Kind::out);
    const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit);
    return set == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, work, maps) : set;
  });
}

template <typename T>
cudaError_t launchTileSm90(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
  switch (tile.tokens) {
    case 16:
      return launch<T, 16>(p, tile, stream);
    case 32:
      return launch<T, 32>(p, tile, stream);
    case 48:
      return launch<T, 48>(p, tile, stream);
    case 64:
      return launch<T, 64>(p, tile, stream);
    case 80:
      return launch<T, 80>(p, tile, stream);
    case 96:
      return launch<T, 96>(p, tile, stream);
    case 112:
      return launch<T, 112>(p, tile, stream);
    case 128:
      return launch<T, 128>(p, tile, stream);
    case 144:
      return launch<T, 144>(p, tile, stream);
    case 160:
      return launch<T, 160>(p, tile, stream);
    case 176:
      return launch<T, 176>(p, tile, stream);
    case 192:
      return launch<T, 192>(p, tile, stream);
    case 208:
      return launch<T, 208>(p, tile, stream);
    case 224:
      return launch<T, 224>(p, tile, stream);
    case 240:
      return launch<T, 240>(p, tile, stream);
    case 256:
      return launch<T, 256>(p, tile, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace padfree
