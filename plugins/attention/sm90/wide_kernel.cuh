// SPDX-License-Identifier: Apache-2.0
// Variable-length attention for Hopper (sm_90a) with heads of more than 128. The output of 64 query rows alone takes
// half of a warpgroup's registers, so a block has two warpgroups that compute, and one warp that loads K and V by TMA
// into slots of shared memory. Both warpgroups read the same K and V: they have two groups of rows of a head, or two
// heads of a group of rows, or share the keys of one group. No list of tasks: blocks are numbered as in
// query_tiles.cuh. docs/internals/attention-hopper.md has the counts.
#pragma once

#include "attention/kernels.h"
#include "attention/sm90/rows.cuh"
#include "attention/sm90/wide_shape.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

// The barriers as the computing warpgroups use them. Copies are numbered: K of step s is 2 s, V is 2 s + 1. A warpgroup
// waits for every copy in this order, also for those that it does not read, so that it never takes a phase of a barrier
// for another.
template <typename S>
struct WideConsumer {
  WideBarriers<S>& barriers;
  const WideMemory<S>& memory;
  const int group, group_thread;
  const bool alone;  // the other warpgroup has nothing to compute

  __device__ void wait(int copy) const { barrierWait(&barriers.full[copy % S::kSlots], copy / S::kSlots & 1); }
  __device__ void release(int copy) const {
    if (group_thread == 0) barrierArrive(&barriers.empty[copy % S::kSlots]);
  }
  __device__ unsigned slot(int copy) const { return memory.slot(copy % S::kSlots); }
  // Both warpgroups multiply in turns, so that one computes exponentials while the other multiplies.
  __device__ void beginTurn() const {
    if (!alone) namedBarrier(kPingPongBarrier + group, kWideGroups * kWarpgroup);
  }
  __device__ void endTurn() const {
    if (!alone) namedArrive(kPingPongBarrier + 1 - group, kWideGroups * kWarpgroup);
  }
  // Passes over the copies of a step of the other warpgroup. A warp that has not waited for them when they are released
  // would miss their phase of the barrier; where a step is multiplied, the products make sure that all have waited.
  __device__ void pass(int step) const {
    wait(2 * step);
    wait(2 * step + 1);
    namedBarrier(kGroupBarrier + group, kWarpgroup);
    release(2 * step);
    release(2 * step + 1);
  }
};

template <typename S>
__device__ void loadWide(const AttentionParams& p, const AttentionMaps& maps, const WideTask& task,
                         WideBarriers<S>& barriers, const WideMemory<S>& memory) {
  const int kv_head = keyHead(p, task.head);
  const auto loadQuery = [&](int group) {
    if (group >= task.units && !task.splits) return;
    loadRows<S, kTaskRows>(maps, 0, memory.query(group), kTaskRows, task.headOf(group), task.begin + task.rowOf(group),
                           &barriers.queries[group]);
  };
  loadQuery(0);
#pragma unroll 1
  for (int copy = 0; copy < 2 * task.steps; ++copy) {
    const int slot = copy % S::kSlots, key = task.key_begin + copy / 2 * S::kKeys;
    barrierWait(&barriers.empty[slot], copy / S::kSlots & 1 ^ 1);
    loadRows<S, S::kKeys>(maps, 1 + copy % 2, memory.slot(slot), min(task.key_end - key, S::kKeys), kv_head,
                          task.begin + key, &barriers.full[slot]);
    if (copy == 0) loadQuery(1);
  }
}

// The softmax of a step's first kCount keys.
template <int kCount, typename S>
__device__ void computeWideWeights(Sm90Rows<S>& rows, const Window& window, int first_distance, float scale_log2,
                                   bool first) {
  maskOutside<kCount>(rows, window, first_distance);
  rows.template computeWeights<kCount>(scale_log2, first);
}

// Where the warpgroups share keys: the first adds the other's results, which pass through the slots.
template <typename S>
__device__ void combineWide(Sm90Rows<S>& rows, const WideConsumer<S>& consumer, float scale_log2) {
  float* const partial = sharedPointer<float>(consumer.memory.slot(0)) + consumer.group_thread;
  namedBarrier(kCombineBarrier, kWideGroups * kWarpgroup);  // neither reads K or V any more
  if (consumer.group == 1) rows.store(partial);
  namedBarrier(kCombineBarrier, kWideGroups * kWarpgroup);
  if (consumer.group == 0) rows.combine(partial, scale_log2);
}

template <typename S>
__device__ void consumeWide(const AttentionParams& p, const WideTask& task, WideBarriers<S>& barriers,
                            const WideMemory<S>& memory, int group) {
  const int group_thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % kWarpSize;
  const WideSteps own = wideStepsOf<S>(p, task, group), other = wideStepsOf<S>(p, task, 1 - group);
  if (own.count == 0) return;
  const WideConsumer<S> consumer{barriers, memory, group, group_thread, other.count == 0};
  const float scale_log2 = p.scale * kLog2E;
  const Window window = windowOf(p);
  const int first = task.rowOf(group);
  const int warp_distance = uniform(task.key_begin - first - group_thread / kWarpSize * kWarpRows);
  if (group == 1) consumer.endTurn();  // warpgroup 0 begins

  barrierWait(&barriers.queries[group], 0);
  if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(memory.query(group)), task.headOf(group), group);
  Sm90Rows<S> rows;
  rows.clearOutput();
  const unsigned q = panelDescriptor(memory.query(group));
  int step = uniform(own.first), left = uniform(own.count);
  const int stride = uniform(own.stride);
  for (int before = 0; before < step; ++before) consumer.pass(before);
  consumer.wait(2 * step);
  consumer.beginTurn();
  issueKeys(rows, q, consumer.slot(2 * step));
  consumer.endTurn();
  wgmmaWait<0>();
  consumer.release(2 * step);
  bool is_first = true;
  for (; left > 1; --left) {
    computeWideWeights<S::kKeys>(rows, window, warp_distance + step * S::kKeys, scale_log2, is_first);
    is_first = false;
    consumer.wait(2 * step + 1);
    if (stride > 1) consumer.pass(step + 1);
    const int next = step + stride;
    consumer.wait(2 * next);
    consumer.beginTurn();
    issueValues<S::kKeys>(rows, consumer.slot(2 * step + 1));
    issueKeys(rows, q, consumer.slot(2 * next));
    consumer.endTurn();
    wgmmaWait<0>();
    consumer.release(2 * step + 1);
    consumer.release(2 * next);
    step = next;
  }
  const int keys = task.key_end - task.key_begin - step * S::kKeys;  // from this step on
  const auto takeLast = [&](auto count) {
    constexpr int kLast = decltype(count)::value;
    if (keys < kLast) rows.template maskFrom<kLast, kLast - S::kKeys / 2>(keys, lane);
    computeWideWeights<kLast>(rows, window, warp_distance + step * S::kKeys, scale_log2, is_first);
    const unsigned values = consumer.slot(2 * step + 1);
    consumer.wait(2 * step + 1);
    if (keys < kLast) {
      zeroValues<S>(values, keys * S::kRowChunks + group_thread, kLast);
      namedBarrier(kGroupBarrier + group, kWarpgroup);
    }
    consumer.beginTurn();
    issueValues<kLast>(rows, values);
    consumer.endTurn();
    wgmmaWait<0>();
  };
  if (keys <= S::kKeys / 2) {
    takeLast(Keys<S::kKeys / 2>{});
  } else {
    takeLast(Keys<S::kKeys>{});
  }
  // Copies that are still to come need no slot of this step's, or the other warpgroup frees it after this one.
  consumer.release(2 * step + 1);
  for (int turn = own.count; turn < other.count; ++turn) {
    consumer.beginTurn();
    consumer.endTurn();
  }
  rows.addUpSums();
  if (task.splits) {
    combineWide<S>(rows, consumer, scale_log2);
    if (group > 0) return;
  }
  storeRows<S>(p, AttentionWorkItem{task.begin + first, min(task.length - first, kTaskRows), task.headOf(group)}, rows);
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attentionSm90WideKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char dynamic[];
  __shared__ WideBarriers<S> barriers;
  const WideMemory<S> memory{(sharedAddress(dynamic) + 1023) & ~1023u};
  const int group = uniform(threadIdx.x / kWarpgroup), group_thread = threadIdx.x % kWarpgroup;
  if (threadIdx.x < 3) {
    prefetchMap(maps.whole[threadIdx.x]);
    prefetchMap(maps.part[threadIdx.x]);
  }
  if (group == kWideGroups && group_thread < S::kSlots) {
    if (group_thread < kWideGroups) barrierInit(&barriers.queries[group_thread], 1);
    barrierInit(&barriers.full[group_thread], 1);
    barrierInit(&barriers.empty[group_thread], kWideGroups);
    fenceBarrierInit();
    fenceAsyncProxy();
  }
  __syncthreads();
  if (!p.early_lengths) waitForPriorGrids();
  const int number = blockIdx.x / p.H, part = blockIdx.x % p.H;
  const QueryTile tile = p.B <= kMaxOrdered ? findLongestQueryTile<S::kTileRows>(p.cu_seqlens, p.B, p.T, number)
                                            : findQueryTile<S::kTileRows>(p.cu_seqlens, p.B, p.T, number);
  waitForPriorGrids();
  releaseNextGrid();
  if (tile.rows <= 0) return;
  if (tile.filler) {
    if (group == 0) zeroRows(p, part, tile.begin + tile.first, tile.rows);
    return;
  }
  const WideTask task = wideTaskOf<S>(p, tile, part);
  if (task.units == 0) return;
  if (group == kWideGroups) {
    shrinkRegisters<S::kProducerRegisters>();
    if (group_thread == 0) loadWide<S>(p, maps, task, barriers, memory);
  } else {
    growRegisters<S::kComputeRegisters>();
    consumeWide<S>(p, task, barriers, memory, group);
  }
#endif
}

template <typename S>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  static_assert(S::kSharedBytes + sizeof(WideBarriers<S>) <= 227 * 1024);
  AttentionMaps maps;
  if (!encodeMaps<S>(params, S::kKeys, maps)) return mapError();
  const unsigned blocks = countQueryTiles(params.T, params.B, S::kTileRows) * static_cast<unsigned>(params.H);
  return launchWithSharedMemory(attentionSm90WideKernel<S>, blocks, S::kThreads, S::kSharedBytes, stream, params, maps);
}

}  // namespace

template <typename T>
cudaError_t launchWideSm90(const AttentionParams& params, cudaStream_t stream) {
  return params.D <= 192 ? launch<WideShape<T, 192>>(params, stream) : launch<WideShape<T, 256>>(params, stream);
}

}  // namespace padfree
