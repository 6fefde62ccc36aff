// SPDX-License-Identifier: Apache-2.0
// Causal attention for Hopper (sm_90a) of sequences that continue another one of their batch: persistent blocks, one
// per multiprocessor. Three warpgroups, two for heads of more than 128 columns, read the same K and V, which one warp
// loads by TMA into slots of shared memory, running ahead into the next tile. Each has 32 query rows of two heads that
// share keys, or 64 of one, so that fewer rows lie beyond the sequence. A step of keys is of the prefix or of
// the sequence itself. No list of tasks: tiles are numbered as in query_tiles.cuh.
#pragma once

#include "attention/kernels.h"
#include "attention/sm90/positions.cuh"
#include "attention/sm90/prefix_task.cuh"
#include "attention/sm90/rows.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

// Copies are numbered through all tasks: K of a task's step s is copy 2 s after those of the tasks before, V is the
// next. Every warp that computes waits for every copy in this order, also for those that it does not read, so that it
// never takes a phase of a barrier for another.
template <typename S>
struct PrefixConsumer {
  PrefixShared<S>& shared;
  const PrefixMemory<S>& memory;
  const int group, group_thread;

  __device__ void wait(int copy) const { barrierWait(&shared.full[copy % S::kSlots], copy / S::kSlots & 1); }
  __device__ void release(int copy) const {
    if (group_thread == 0) barrierArrive(&shared.empty[copy % S::kSlots]);
  }
  __device__ unsigned slot(int copy) const { return memory.slot(copy % S::kSlots); }
  // Called by all warps when they have read the task and the products with its queries are done.
  __device__ void releaseQueries(int query_slot) const {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) barrierArrive(&shared.queries_free[query_slot][group]);
  }
  // Warpgroups multiply in turns, so that one computes exponentials while another multiplies. All have as many turns in
  // a task, one more than it has steps.
  __device__ void beginTurn() const { namedBarrier(kPingPongBarrier + group, 2 * kWarpgroup); }
  __device__ void endTurn() const { namedArrive(kPingPongBarrier + (group + 1) % S::kGroups, 2 * kWarpgroup); }
  // Passes over steps whose keys none of this warpgroup's rows sees. A warp that has not waited for copies when they
  // are released would miss their phase of the barrier; where they are multiplied, the products make sure that all have
  // waited.
  __device__ void passSteps(int copy, int first, int end) const {
#pragma unroll 1
    for (int step = first; step < end; ++step) {
      wait(copy + 2 * step);
      wait(copy + 2 * step + 1);
      namedBarrier(kGroupBarrier + group, kWarpgroup);
      release(copy + 2 * step);
      release(copy + 2 * step + 1);
      beginTurn();
      endTurn();
    }
  }
  // Values of a copy from key `keys` to `end` become zeros: they are other sequences', or not there at all.
  __device__ void zeroOthers(int copy, int keys, int end) const {
    zeroValues<S>(slot(copy), keys * S::kRowChunks + group_thread, end);
    namedBarrier(kGroupBarrier + group, kWarpgroup);
  }
};

// Q of a warpgroup: 64 rows of a head, or kBoxRows of each of two.
template <typename S>
__device__ void loadPrefixQuery(const AttentionMaps& maps, const PrefixTask& task, int group, unsigned target,
                                uint64_t* barrier) {
  const int token = task.begin + task.rowOf(group);
  if (group >= task.units) {
    barrierArrive(barrier);
  } else if (task.heads == 1) {
    loadRows<S, kTaskRows>(maps, 0, target, kTaskRows, task.head, token, barrier);
  } else {
    barrierExpect(barrier, S::kQueryBytes);
#pragma unroll 1
    for (int box = 0; box < 2 * S::kPanels; ++box) {
      const int head = box % 2, panel = box / 2;
      copyBox(target + panel * S::kQueryPanelBytes + head * kBoxRows * S::kRowBytes, maps.part[0], panel * S::kColumns,
              task.head + head, token, barrier);
    }
  }
}

// The loading warp: finds the block's tasks, hands them out, and loads. Rounds alternate in direction, so that a block
// with an expensive tile in one has a cheap one in the next.
template <typename S>
__device__ void loadPrefixTasks(const AttentionParams& p, const AttentionMaps& maps, int heads, int tiles,
                                PrefixShared<S>& shared, const PrefixMemory<S>& memory) {
  const bool leads = threadIdx.x % kWarpSize == 0;
  const int parts = p.H / heads, grid = gridDim.x, block = blockIdx.x;
  int item = 0, copy = 0;
  const auto handOut = [&](const PrefixTask& task) {
    const int slot = item % S::kQuerySlots;
    for (int group = 0; group < S::kGroups; ++group) {
      barrierWait(&shared.queries_free[slot][group], item / S::kQuerySlots & 1 ^ 1);
    }
    shared.tasks[slot] = task;
    for (int group = 0; group < S::kGroups; ++group) {
      loadPrefixQuery<S>(maps, task, group, memory.query(slot, group), &shared.queries[slot][group]);
    }
  };
#pragma unroll 1
  for (int round = 0; round * grid < tiles * parts; ++round) {
    const int number = round * grid + (round % 2 ? grid - 1 - block : block);
    if (number >= tiles * parts) continue;
    const QueryTile tile = findQueryTile(p.cu_seqlens, p.B, p.T, number / parts, S::tileRows(heads));
    if (tile.rows <= 0) continue;
    const PrefixTask task = prefixTaskOf<S>(p, tile, number % parts * heads, heads);
    if (leads) {
      handOut(task);
      const int kv_head = keyHead(p, task.head);
#pragma unroll 1
      for (int i = 0; i < 2 * task.steps; ++i) {
        const int at = copy + i, slot = at % S::kSlots, step = i / 2;
        barrierWait(&shared.empty[slot], at / S::kSlots & 1 ^ 1);
        loadRows<S, S::kKeys>(maps, 1 + i % 2, memory.slot(slot), task.keysOf(step), kv_head, task.tokenOf(step),
                              &shared.full[slot]);
      }
    }
    __syncwarp();
    copy += 2 * task.steps;
    ++item;
  }
  PrefixTask end{};
  end.units = kNoTask;
  if (leads) handOut(end);
}

// Computes this warpgroup's rows of a task, whose first copy is `copy`.
template <typename S>
__device__ void attendPrefixTask(const AttentionParams& p, const PrefixTask& task, const PrefixConsumer<S>& consumer,
                                 int query_slot, int copy) {
  const int group = consumer.group, lane = threadIdx.x % kWarpSize, warp = consumer.group_thread / kWarpSize;
  const float scale_log2 = p.scale * kLog2E;
  const Window window = windowOf(p);
  const int first = task.rowOf(group), count = min(task.first + task.rows - first, task.group_rows);
  const int own_head = task.heads == 1 ? 0 : warp / 2, first_row = own_head * kBoxRows;  // of the head, in the group
  const int warp_distance = uniform(-(first + warp * kWarpRows - first_row));            // to the sequence's first key
  const int prefix_steps = uniform(task.prefix_steps),
            steps = prefix_steps + uniform(ceilDiv(first + count - task.own_begin, S::kKeys));
  const unsigned query = consumer.memory.query(query_slot, group);
  if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(query), task.head, group);

  Sm90Rows<S> rows;
  rows.clearOutput();
  const unsigned q = panelDescriptor(query);
  consumer.wait(copy);
  consumer.beginTurn();
  issueKeys(rows, q, consumer.slot(copy));
  consumer.endTurn();
  wgmmaWait<0>();
  consumer.release(copy);
  int values = copy + 1;  // the copy with the values of `step`
#pragma unroll 1
  for (int step = 0; step + 1 < steps; ++step, values += 2) {
    const int keys = task.keysOf(step);
    const int first_distance = warp_distance + task.keyOf(step);
    addPositionBias<S::kKeys>(p, rows, task.head + own_head, first_distance);
    maskOutside<S::kKeys>(rows, window, first_distance);
    if (keys < S::kKeys) rows.template maskFrom<S::kKeys>(keys, lane);
    rows.template computeWeights<S::kKeys>(scale_log2, step == 0);
    consumer.wait(values);
    if (keys < S::kKeys) consumer.zeroOthers(values, keys, S::kKeys);
    consumer.wait(values + 1);
    consumer.beginTurn();
    issueValues<S::kKeys>(rows, consumer.slot(values));
    issueKeys(rows, q, consumer.slot(values + 1));
    consumer.endTurn();
    wgmmaWait<0>();
    consumer.release(values);
    consumer.release(values + 1);
  }
  consumer.releaseQueries(query_slot);
  // The last step is the sequence's own.
  const int first_key = task.keyOf(steps - 1);
  const auto takeLast = [&](auto width) {
    constexpr int kLast = decltype(width)::value;
    addPositionBias<kLast>(p, rows, task.head + own_head, warp_distance + first_key);
    maskOutside<kLast>(rows, window, warp_distance + first_key);
    rows.template computeWeights<kLast>(scale_log2, steps == 1);
    consumer.wait(values);
    const int keys = task.keysOf(steps - 1);
    if (keys < kLast) consumer.zeroOthers(values, keys, kLast);
    consumer.beginTurn();
    issueValues<kLast>(rows, consumer.slot(values));
    consumer.endTurn();
    wgmmaWait<0>();
  };
  if (first + count - first_key <= S::kKeys / 2) {
    takeLast(Keys<S::kKeys / 2>{});
  } else {
    takeLast(Keys<S::kKeys>{});
  }
  consumer.release(values);
  consumer.passSteps(copy, steps, task.steps);
  rows.addUpSums();
  storeRows<S>(p, AttentionWorkItem{task.begin + first - first_row, count + first_row, task.head + own_head}, rows);
}

template <typename S>
__device__ void consumePrefixTasks(const AttentionParams& p, PrefixShared<S>& shared, const PrefixMemory<S>& memory,
                                   int group) {
  const PrefixConsumer<S> consumer{shared, memory, group, static_cast<int>(threadIdx.x % kWarpgroup)};
  if (group == S::kGroups - 1) consumer.endTurn();  // warpgroup 0 begins
  int copy = 0;
#pragma unroll 1
  for (int item = 0;; ++item) {
    const int slot = item % S::kQuerySlots;
    barrierWait(&shared.queries[slot][group], item / S::kQuerySlots & 1);
    const PrefixTask task = shared.tasks[slot];
    if (task.units == kNoTask) return;
    if (group < task.units) {
      attendPrefixTask(p, task, consumer, slot, copy);
    } else {
      consumer.releaseQueries(slot);
      if (task.steps > 0) {
        consumer.beginTurn();
        consumer.endTurn();
        consumer.passSteps(copy, 0, task.steps);
      } else if (group == 0) {
        for (int i = 0; i < task.heads; ++i) zeroRows(p, task.head + i, task.begin + task.first, task.rows);
      }
    }
    copy += 2 * uniform(task.steps);
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attentionSm90PrefixKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionMaps maps,
                              int heads, int tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char dynamic[];
  __shared__ PrefixShared<S> shared;
  const PrefixMemory<S> memory{(sharedAddress(dynamic) + 1023) & ~1023u};
  const int group = uniform(threadIdx.x / kWarpgroup), group_thread = threadIdx.x % kWarpgroup;
  if (threadIdx.x < 3) {
    prefetchMap(maps.whole[threadIdx.x]);
    prefetchMap(maps.part[threadIdx.x]);
  }
  if (group == S::kGroups && group_thread < S::kSlots) {
    barrierInit(&shared.full[group_thread], 1);
    barrierInit(&shared.empty[group_thread], S::kGroups);
    if (group_thread < S::kGroups) {
      for (int slot = 0; slot < S::kQuerySlots; ++slot) {
        barrierInit(&shared.queries[slot][group_thread], 1);
        barrierInit(&shared.queries_free[slot][group_thread], kWarpgroup / kWarpSize);
      }
    }
    fenceBarrierInit();
    fenceAsyncProxy();
  }
  __syncthreads();
  waitForPriorGrids();
  releaseNextGrid();
  if (group == S::kGroups) {
    shrinkRegisters<S::kProducerRegisters>();
    if (group_thread < kWarpSize) loadPrefixTasks<S>(p, maps, heads, tiles, shared, memory);
  } else {
    growRegisters<S::kComputeRegisters>();
    consumePrefixTasks<S>(p, shared, memory, group);
  }
#endif
}

template <typename S>
cudaError_t launchPrefixShape(const AttentionParams& params, cudaStream_t stream) {
  static_assert(S::kSharedBytes + sizeof(PrefixShared<S>) <= 227 * 1024);
  AttentionMaps maps;
  if (!encodeMaps<S>(params, S::kKeys, maps)) return mapError();
  int multiprocessors = 0;
  const cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  // A bias of Q is added to rows of one head.
  const int heads = params.H / params.kv_heads % 2 == 0 && !params.q.bias ? 2 : 1;
  const int tiles = static_cast<int>(countQueryTiles(params.T, params.B, S::tileRows(heads)));
  return launchWithSharedMemory(attentionSm90PrefixKernel<S>, multiprocessors, S::kThreads, S::kSharedBytes, stream,
                                params, maps, heads, tiles);
}

}  // namespace

template <typename T>
cudaError_t launchPrefixSm90(const AttentionParams& params, cudaStream_t stream) {
  if (params.D <= 64) return launchPrefixShape<PrefixShape<T, 64>>(params, stream);
  if (params.D <= 128) return launchPrefixShape<PrefixShape<T, 128>>(params, stream);
  return launchPrefixShape<PrefixShape<T, kMaxHeadSize>>(params, stream);
}

}  // namespace padfree
