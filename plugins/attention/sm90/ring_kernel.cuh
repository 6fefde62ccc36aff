// SPDX-License-Identifier: Apache-2.0
// Variable-length attention for Hopper (sm_90a): persistent blocks, one per multiprocessor, work through the task list
// that PadfreeSchedule made. Three warps load by TMA, running ahead into the next task: one Q, the others K and V into
// a ring of shared-memory stages. Three warpgroups of 64 query rows each multiply with wgmma (after FlashAttention-3,
// arXiv 2407.08608). docs/internals/attention-hopper.md has a picture.
//
// A box of rows may reach beyond its sequence. Scores of keys there are masked; rows of V there are overwritten by
// zeros, because a weight of 0 does not silence a NaN.
#pragma once

#include "attention/kernels.h"
#include "attention/sm90/consumer.cuh"
#include "attention/sm90/producer.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attentionSm90Kernel(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char dynamic[];
  __shared__ Sm90Shared<S> shared;
  const Sm90Memory<S> memory{(sharedAddress(dynamic) + 1023) & ~1023u};
  const int group = uniform(threadIdx.x / kWarpgroup), group_thread = threadIdx.x % kWarpgroup;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) {
      prefetchMap(maps.whole[i]);
      prefetchMap(maps.part[i]);
    }
  }
  if (group == kTaskWidth && group_thread < kWarpSize) {
    if (group_thread < kTaskWidth) {
      for (int slot = 0; slot < S::kQuerySlots; ++slot) {
        barrierInit(&shared.queries[slot][group_thread], 1);
        barrierInit(&shared.queries_free[slot][group_thread], kWarpgroup / kWarpSize);
      }
    }
    if (group_thread == 0) shared.issued_stages = S::kStages;
    if (group_thread < S::kKeyBarriers) barrierInit(&shared.keys[group_thread], 1);
    if (group_thread < S::kStages) {
      barrierInit(&shared.values[group_thread], 1);
      barrierInit(&shared.empty[group_thread], kStageArrivals);
    }
    fenceBarrierInit();
    fenceAsyncProxy();
  }
  __syncthreads();
  if (group == kTaskWidth) {
    shrinkRegisters<S::kProducerRegisters>();
    if (!p.early_lengths) waitForPriorGrids();
    const int warp = uniform(group_thread / kWarpSize);
    if (warp == 0) {
      distributeWorkItems<S>(p, maps, shared, memory);
    } else if (warp < 3) {
      loadStages<S>(p, maps, shared, memory, warp);
    }
  } else {
    growRegisters<S::kComputeRegisters>();
    consumeAttention<S>(p, shared, memory, group);
  }
#endif
}

template <typename S>
constexpr int tableBytes(int range) {
  return kTaskWidth * S::tableEntries(range) * static_cast<int>(sizeof(float));
}

template <typename S>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  static_assert(S::kSharedBytes + tableBytes<S>(kMaxHopperBiasRange) + sizeof(Sm90Shared<S>) <= 227 * 1024);
  const bool tables = S::kPositionMode == PositionMode::kDistance;
  const int shared_bytes = S::kSharedBytes + (tables ? tableBytes<S>(params.bias_range) : 0);
  AttentionMaps maps;
  if (!encodeMaps<S>(params, S::kKeys, maps)) return mapError();
  int multiprocessors = 0;
  const cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  return launchWithSharedMemory(attentionSm90Kernel<S>, multiprocessors, S::kThreads, shared_bytes, stream, params,
                                maps);
}

template <typename T>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  // With windows and biases, heads of up to 32 are computed as 64: they are rare, and each would be a further instance.
  if (params.D <= 32 && !hasPositions(params))
    return launch<Sm90Shape<T, 32, 128, 4, PositionMode::kNone>>(params, stream);
  return dispatchPositionMode(params, [&](auto mode) {
    constexpr PositionMode kPositionMode = decltype(mode)::value;
    return params.D <= 64 ? launch<Sm90Shape<T, 64, 128, 4, kPositionMode>>(params, stream)
                          : launch<Sm90Shape<T, 128, 64, 4, kPositionMode>>(params, stream);
  });
}

}  // namespace

template <typename T>
cudaError_t launchRingSm90(const AttentionParams& params, cudaStream_t stream) {
  return chooseShape<T>(params, stream);
}

}  // namespace padfree
