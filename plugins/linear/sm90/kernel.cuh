// SPDX-License-Identifier: Apache-2.0
// y = activation(x W + bias) + residual for Hopper (sm_90a). The GEMM is computed transposed: features are the 64
// rows of a matrix instruction, tokens its columns, so that tiles of any multiple of 16 tokens exist and waves of tiles
// can be filled for any number of tokens. Blocks are persistent and take tile after tile: one warp fetches weights and
// one input (TMA, shared by the blocks of a cluster), two warpgroups of 64 features each multiply. Where tiles are
// fewer than multiprocessors, blocks of a cluster share a tile, each a part of the reduction.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "linear/sm90/consumer.cuh"
#include "linear/sm90/producer.cuh"

namespace padfree {

template <typename Operands, int kTokens, typename Epilogue>
__global__ void __launch_bounds__(kLinearThreads, 1)
    linearSm90Kernel(const __grid_constant__ Work work, const __grid_constant__ typename Operands::Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shape<kTokens>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  __shared__ Barriers barriers;
  const unsigned stages = sharedAddress(shared_bytes);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.x, &maps.weight, &maps.y_at_once}) prefetchMap(*map);
    if (Epilogue::out != Out::kStages) prefetchMap(maps.y);
    if (work.residual) prefetchMap(maps.residual);
    const unsigned warps = work.tiling.cluster_features * work.tiling.cluster_tokens * kGroups * kWarps;
    for (int stage = 0; stage < work.ring_stages; ++stage) {
      barrierInit(&barriers.full[stage], 2);  // weights and input
      barrierInit(&barriers.empty[stage], warps);
    }
    for (uint64_t& barrier : barriers.residual) barrierInit(&barrier, 1);
    barriers.scales.init();
    if constexpr (normsWideHeads<Epilogue>(kTokens)) HeadHalves<kTokens>::init();
    fenceBarrierInit();
    fenceAsyncProxy();
  }
  clusterSync();
  const BlockCoord coord(work);
  unsigned char* const out = shared_bytes + work.ring_stages * S::kStageBytes;
  using Scale = ScaleOf<Epilogue>;
  Scale* const scales = reinterpret_cast<Scale*>(out + S::outBytes(Epilogue::out));
  constexpr bool kHeadsFirst = headsComeFirst<Epilogue>(kTokens);
  if (threadIdx.x < kWarpgroup) {
    shrinkRegisters<56>();
    if (threadIdx.x == 0)
      fetchWeight<Operands, kTokens, Epilogue::out, kHeadsFirst>(work, maps, coord, barriers, stages);
    if (threadIdx.x == kWarpSize)
      fetchInput<Operands, kTokens, Epilogue::out, kHeadsFirst>(work, maps, coord, barriers, stages);
    const int thread = threadIdx.x - (kWarpgroup - kScaleThreads);
    const Epilogue epilogue(work);
    if (epilogue.normed && thread >= 0) {
      constexpr bool kMayLack = Epilogue::gated || Epilogue::rotates;
      fetchScales<kTokens, kMayLack, kHeadsFirst>(work, coord, barriers.scales, scales, thread);
    }
    __syncwarp();
    if (epilogue.shares_tile) clusterSyncMemory();  // with the consumers' reduceParts()
  } else {
    growRegisters<224>();
    waitForPriorGrids();
    Consumer<Operands, kTokens, Epilogue>(work, maps, barriers, shared_bytes, out, scales).run(coord);
  }
  __syncwarp();
  if (work.tiling.parts > 1) clusterSync();  // no block leaves while another may still read its sums
#endif
}

}  // namespace padfree
