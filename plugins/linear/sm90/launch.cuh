// SPDX-License-Identifier: Apache-2.0
// Launches of the Hopper kernel. Included where it is compiled for one type and some kinds of epilogue.
#pragma once

#include <algorithm>

#include "common/launch.h"
#include "common/tensor_map.h"
#include "linear/sm90/kernel.cuh"
#include "linear/sm90/launch.h"
#include "linear/sm90/operands.cuh"

namespace padfree {

// Features along the rows of W and y, the reduction along those of x: always the tensor's contiguous axis first.
template <typename Epilogue>
bool encodeMaps(TypeTag<Epilogue>, const LinearParams& p, const LinearTiling& tiling, int boxes_at_once, Maps& maps) {
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
         encodeResults(maps.y, kBoxTokens) && encodeResults(maps.y_at_once, boxes_at_once * kBoxTokens) &&
         (!p.residual || encode(maps.residual, p.residual, p.T, p.N, tiling.tokens));
}

// Of a power of two.
inline int logarithm(int value) {
  int result = 0;
  while (1 << result < value) ++result;
  return result;
}

inline Work makeWork(const LinearParams& p, const LinearTiling& tiling, int multiprocessors) {
  Work work{};
  work.bias = p.bias;
  work.normed = p.x_moments ? Normed::kInput : p.residual_moments ? Normed::kResidual : Normed::kNothing;
  work.residual_scale = p.residual_moments ? p.residual_scale : nullptr;
  work.moments_in = reinterpret_cast<const float2*>(p.x_moments ? p.x_moments : p.residual_moments);
  work.groups_in = (p.x_moments ? p.K : p.N) / kGroupFeatures;
  work.per_group = work.groups_in > 0 ? 1.f / work.groups_in : 0.f;
  work.epsilon = p.x_moments ? p.x_epsilon : p.residual_epsilon;
  work.moments_out = reinterpret_cast<float2*>(p.moments);
  work.T = p.T;
  work.N = p.N;
  work.stages = stagesOf(p);
  work.activation = p.activation;
  work.residual = p.residual != nullptr;
  work.rms = p.rms;
  work.gated = p.gated;
  work.rotary_features = p.rotary_features;
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
  return work;
}

// The epilogues of GEMMs with these operands: for e4m3 others (launch_e4m3.cuh).
template <bool kMayShare, typename T, EpilogueKind kKind, typename Run>
cudaError_t withEpilogueOf(TypeTag<HalfOperands<T>>, EpilogueKindTag<kKind> kind, const Work& work, Run run) {
  return withEpilogue<kMayShare>(kind, work, run);
}
// Which kernel has tiles of this shape: for resident input it is another (launch_resident.cuh).
template <typename Operands, int kTokens, typename Epilogue>
auto kernelOf(TypeTag<Operands>, TypeTag<Shape<kTokens>>, TypeTag<Epilogue>) {
  return linearSm90Kernel<Operands, kTokens, Epilogue>;
}

// choose(work, run) calls `run` with the tag of an epilogue.
template <typename Operands, typename S, typename Choose>
cudaError_t launch(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream, Choose choose) {
  int multiprocessors = 0;
  const cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  Work work = makeWork(p, tiling, multiprocessors);
  const int cluster_size = clusterBlocks(work.tiling);
  // Blocks that share a tile leave its sums where the next tile's stages would be: they stay for one.
  const int at_once =
      sharesTile(work) ? work.clusters : std::min(work.clusters, linearClustersAtOnce(work.tiling, multiprocessors));
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
  return choose(work, [&](auto tag) {
    using Epilogue = typename decltype(tag)::Type;
    const auto kernel = kernelOf(TypeTag<Operands>(), TypeTag<S>(), tag);
    typename Operands::Maps maps;
    if (!encodeMaps(TypeTag<Epilogue>(), p, tiling, S::boxesAtOnce(Epilogue::out, Operands::scaled), maps))
      return cudaErrorInvalidValue;
    work.ring_stages = S::stages(Epilogue::out, work.stages);
    config.dynamicSmemBytes = S::sharedBytes(Epilogue::out, work.stages);
    const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit);
    return set == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, work, maps) : set;
  });
}

template <EpilogueKind kKind, typename Operands, int kTokens>
cudaError_t launchIfThere(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  constexpr bool kMayShare = hasSharedTile(kKind, Operands::scaled, kTokens);
  if constexpr (!kMayShare && !hasTile(kKind, Operands::scaled, kTokens)) {
    return cudaErrorInvalidValue;
  } else {
    return launch<Operands, Shape<kTokens>>(p, tiling, stream, [](const Work& work, auto run) {
      return withEpilogueOf<kMayShare>(TypeTag<Operands>(), EpilogueKindTag<kKind>(), work, run);
    });
  }
}

// The sizes of tiles that there are for these operands and this kind of epilogue.
template <EpilogueKind kKind, typename Operands>
cudaError_t launchTokens(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  switch (tiling.tokens) {
    case 16:
      return launchIfThere<kKind, Operands, 16>(p, tiling, stream);
    case 32:
      return launchIfThere<kKind, Operands, 32>(p, tiling, stream);
    case 48:
      return launchIfThere<kKind, Operands, 48>(p, tiling, stream);
    case 64:
      return launchIfThere<kKind, Operands, 64>(p, tiling, stream);
    case 80:
      return launchIfThere<kKind, Operands, 80>(p, tiling, stream);
    case 96:
      return launchIfThere<kKind, Operands, 96>(p, tiling, stream);
    case 112:
      return launchIfThere<kKind, Operands, 112>(p, tiling, stream);
    case 128:
      return launchIfThere<kKind, Operands, 128>(p, tiling, stream);
    case 144:
      return launchIfThere<kKind, Operands, 144>(p, tiling, stream);
    case 160:
      return launchIfThere<kKind, Operands, 160>(p, tiling, stream);
    case 176:
      return launchIfThere<kKind, Operands, 176>(p, tiling, stream);
    case 192:
      return launchIfThere<kKind, Operands, 192>(p, tiling, stream);
    case 208:
      return launchIfThere<kKind, Operands, 208>(p, tiling, stream);
    case 224:
      return launchIfThere<kKind, Operands, 224>(p, tiling, stream);
    case 240:
      return launchIfThere<kKind, Operands, 240>(p, tiling, stream);
    case 256:
      return launchIfThere<kKind, Operands, 256>(p, tiling, stream);
  }
  return cudaErrorInvalidValue;
}

template <EpilogueKind kKind, typename T>
cudaError_t launchHalfSm90(const LinearParams& p, const LinearTiling& tiling, cudaStream_t stream) {
  return launchTokens<kKind, HalfOperands<T>>(p, tiling, stream);
}

}  // namespace padfree
