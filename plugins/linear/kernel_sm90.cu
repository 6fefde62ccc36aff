// SPDX-License-Identifier: Apache-2.0
// y = activation(x W + bias) + residual for Hopper (sm_90a). The product is computed transposed: features are the 64
// rows of a matrix instruction, tokens its columns, so that tiles of any multiple of 16 tokens exist and waves of tiles
// can be filled for any number of tokens. Blocks stay and take tile after tile: one warp fetches weights and one input
// (TMA, shared by the blocks of a cluster), two warpgroups of 64 features each multiply. Where tiles are fewer than
// multiprocessors, blocks of a cluster share a tile, each a part of the reduction.
#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "common/tensor_map.h"
#include "linear/consumer.cuh"
#include "linear/fetch.cuh"
#include "linear/kernel.h"

namespace padfree {
namespace {

template <typename T, int kTokens>
__global__ void __launch_bounds__(kLinearThreads, 1)
    linearSm90Kernel(const __grid_constant__ Work work, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shape<kTokens>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  __shared__ Barriers barriers;
  const unsigned stages = sharedAddress(shared_bytes);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.x, &maps.weight, &maps.y}) prefetchMap(*map);
    const unsigned warps = work.tile.cluster_features * work.tile.cluster_tokens * kGroups * kWarpgroup / kWarpSize;
    for (int stage = 0; stage < S::kStages; ++stage) {
      barrierInit(&barriers.full[stage], 2);  // weights and input
      barrierInit(&barriers.empty[stage], warps);
    }
    for (auto& group : barriers.residual) {
      for (uint64_t& barrier : group) barrierInit(&barrier, 1);
    }
    fenceBarrierInit();
    fenceSharedForWgmma();
  }
  clusterSync();
  const Position at(work);
  unsigned char* const out = shared_bytes + S::kStages * S::kStageBytes;
  if (threadIdx.x < kWarpgroup) {
    shrinkRegisters<40>();
    if (threadIdx.x == 0) fetchWeight<kTokens>(work, maps, at, barriers, stages);
    if (threadIdx.x == kWarpSize) fetchInput<kTokens>(work, maps, at, barriers, stages);
    __syncwarp();
    if (work.tile.parts > 1) clusterSyncMemory();  // with the consumers' gather()
  } else {
    growRegisters<232>();
    waitForPriorGrids();
    Consumer<T, kTokens>(work, maps, barriers, stages, out).run(at);
    if (threadIdx.x % kWarpgroup == 0) waitStoresRead<0>();
  }
  __syncwarp();
  clusterSync();  // no block leaves while another may still write to it
#endif
}

// Features along the rows of W and y, the reduction along those of x: always the tensor's contiguous axis first.
bool encodeMaps(const LinearParams& p, const LinearTile& tile, Maps& maps) {
  const auto width = [](int columns) { return static_cast<uint64_t>(columns); };
  const auto encode = [&](CUtensorMap& map, const void* data, int rows, int columns, int box_rows) {
    return encodeMatrix(map, p.type, data, width(rows), width(columns), box_rows, kPanelColumns);
  };
  maps.residual = {};
  return encode(maps.x, p.x, p.T, p.K, tile.tokens / tile.cluster_features) &&
         encode(maps.weight, p.weight, p.K, p.N, kDepth) && encode(maps.y, p.y, p.T, p.N, kBoxTokens) &&
         (!p.residual || encode(maps.residual, p.residual, p.T, p.N, kBoxTokens));
}

template <typename T, int kTokens>
cudaError_t launch(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
  using S = Shape<kTokens>;
  int multiprocessors = 0;
  cudaError_t status = countMultiprocessors(multiprocessors);
  const auto kernel = linearSm90Kernel<T, kTokens>;
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  }
  if (status != cudaSuccess) return status;

  Maps maps;
  if (!encodeMaps(p, tile, maps)) return cudaErrorInvalidValue;
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
  work.owned_shift = tile.tokens >= work.tile.parts * kChunk ? 1 : 0;
  work.feature_clusters = ceilDiv(p.N, kLinearFeatures * tile.cluster_features);
  work.clusters = work.feature_clusters * ceilDiv(p.T, kTokens * tile.cluster_tokens);

  const int cluster_size = tile.cluster_features * tile.cluster_tokens * work.tile.parts;
  // Blocks that share a tile leave its sums where the next tile's stages would be: they stay for one.
  const int at_once = work.tile.parts > 1 ? work.clusters : std::min(work.clusters, multiprocessors / cluster_size);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster_size), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = at_once * cluster_size;
  config.blockDim = kLinearThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = overlapsLaunches() ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, work, maps);
}

template <typename T>
cudaError_t launchTile(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
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

// Whether norms are asked for as the kernel computes them.
bool areMomentsValid(const LinearParams& p, const LinearTile& tile) {
  const auto isWidth = [](int width) { return width % kGroupFeatures == 0; };
  const auto isNormedWidth = [&](int width) { return isWidth(width) && width / kGroupFeatures <= kMaxMomentGroups; };
  if (p.x_moments && (!p.column_sums || p.residual_moments || !isNormedWidth(p.K))) return false;
  if (p.residual_moments && (!p.residual || !p.residual_scale || !isNormedWidth(p.N))) return false;
  if (p.moments && !isWidth(p.N)) return false;
  if ((p.residual_moments || p.moments) && p.activation != Activation::kNone) return false;
  return tile.tokens <= kMaxNormedTokens || (!p.x_moments && !p.residual_moments);
}

}  // namespace

cudaError_t launchLinearSm90(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
  if (p.T <= 0 || p.N <= 0) return cudaSuccess;
  if (p.K <= 0 || p.K % 8 != 0 || p.N % 8 != 0) return cudaErrorInvalidValue;
  if (!areMomentsValid(p, tile)) return cudaErrorInvalidValue;
  for (const void* data : {p.x, p.weight, p.residual, static_cast<const void*>(p.y)}) {
    if (!isAligned16(data)) return cudaErrorMisalignedAddress;
  }
  if (p.type == DataType::kFloat16) return launchTile<half>(p, tile, stream);
  if (p.type == DataType::kBFloat16) return launchTile<__nv_bfloat16>(p, tile, stream);
  return cudaErrorInvalidValue;
}

}  // namespace padfree
