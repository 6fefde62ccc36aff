// SPDX-License-Identifier: Apache-2.0
// Variable-length attention for Hopper where sequences are short: a block of one warpgroup takes one head of one
// sequence, or 64 query rows of it. Its Q, K and V come by TMA at once, one warp each. No list of tasks: blocks are
// many and small, the multiprocessors take them as they have room, and the loads of one overlap with the products of
// others.
//
// Sequences that are longer than what a block has room for are computed tile by tile.
#pragma once

#include "attention/kernels.h"
#include "attention/sm90/maps.cuh"
#include "attention/sm90/positions.cuh"
#include "attention/sm90/rows.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

constexpr int kCountStep = 32;  // numbers of keys to multiply are multiples of it
constexpr int kLongKeys = 32;   // keys of a step where the sequence is longer than what fits on chip

// K and V of kStepKeys keys are on chip, and Q of two groups of kTaskRows rows; kResidentBlocks of such blocks on a
// multiprocessor.
template <typename Element, int kHeadSize, int kStepKeys, int kResidentBlocks, PositionMode kDependsOn>
struct ShortShape : Sm90Tiles<Element, kHeadSize, kStepKeys> {
  using Tiles = Sm90Tiles<Element, kHeadSize, kStepKeys>;
  static constexpr PositionMode kPositionMode = kDependsOn;
  static constexpr int kBlocks = kResidentBlocks;
  static constexpr int kTableReach = 2 * kTaskRows - 1;  // between rows and keys on chip
  static constexpr int kTableEntries = kPositionMode == PositionMode::kDistance ? 2 * kTableReach + 1 : 1;
  static constexpr int kSharedBytes = 2 * Tiles::kQueryBytes + 2 * Tiles::kKeyBytes + 1024;  // the last to align
};

// Where a block's data are; base is a multiple of 1024 in shared space.
template <typename S>
struct ShortMemory {
  unsigned base;
  __device__ unsigned query(int slot) const { return base + slot * S::kQueryBytes; }
  __device__ unsigned key() const { return base + 2 * S::kQueryBytes; }
  __device__ unsigned value() const { return key() + S::kKeyBytes; }
};

struct ShortBarriers {
  uint64_t queries[2], keys, values;  // complete when the copies have arrived
};

// Rows after the last sequence become zeros; the blocks of all heads share this work.
__device__ inline void zeroFiller(const AttentionParams& p, int begin) {
  const int chunks = p.H * p.D / 8, part = blockIdx.y * p.H + blockIdx.x % p.H, parts = gridDim.y * p.H;
  const int64_t first = static_cast<int64_t>(begin) * chunks, count = static_cast<int64_t>(p.T - begin) * chunks;
  for (int64_t i = part * kWarpgroup + threadIdx.x; i < count; i += parts * kWarpgroup) zeroChunk(p, first + i);
}

// Windows and biases of the scores of rows from first_row and keys from first_key on. kLong: not all of the sequence's
// keys are on chip.
template <typename S, int kCount, bool kLong>
__device__ inline void applyPositions(Sm90Rows<S>& rows, const AttentionParams& p, int head, float slope,
                                      const DistanceTable& table, int first_row, int first_key) {
  const int first_distance = uniform(first_key - first_row - static_cast<int>(threadIdx.x) / kWarpSize * kWarpRows);
  const int distance = laneDistance(first_distance);
  if constexpr (S::kPositionMode == PositionMode::kSlope) {
    applyBias<kCount>(rows, SlopeBias{slope, static_cast<float>(distance)});
  } else if constexpr (S::kPositionMode == PositionMode::kDistance && kLong) {
    applyBias<kCount>(rows, DistantBias{middleBias(p, head), p.bias_range, distance, 1.f / p.scale});
  } else if constexpr (S::kPositionMode == PositionMode::kDistance) {
    applyBias<kCount>(rows, TableBias{table.address(distance)});
  }
  if constexpr (S::kPositionMode != PositionMode::kNone) maskOutside<kCount>(rows, windowOf(p), first_distance);
}

// Scores of 64 query rows and kCount keys on chip, from key_row on, their weights and the product with V. `keys` of the
// keys count; first: the rows have seen none before. kOnly: they are all that the sequence has; sums are added up, too.
// adjust(): what is done to scores before their softmax.
template <typename S, int kCount, bool kOnly, typename Adjust>
__device__ inline void attendKeys(Sm90Rows<S>& rows, const ShortMemory<S>& memory, ShortBarriers& barriers, int slot,
                                  int key_row, int keys, unsigned parity, float scale_log2, bool first, Adjust adjust) {
  constexpr int kSure = kOnly && (kCount > 64 || S::kKeys <= 64) ? kCount - kCountStep : 0;  // fewer: another kCount
  auto& scores = reinterpret_cast<float (&)[kCount / 8][4]>(rows.scores);
  const unsigned q = panelDescriptor(memory.query(slot)), k = panelDescriptor(memory.key() + key_row * S::kRowBytes);
  const unsigned value = memory.value() + key_row * S::kRowBytes, v = panelDescriptor(value);
  barrierWait(&barriers.keys, parity);
  wgmmaFence();
  multiplyKeys<S>(scores, q, k);
  wgmmaCommit();
  // Rows of V beyond the sequence become zeros while the matrix unit works.
  barrierWait(&barriers.values, parity);
  if (keys < kCount) {
    zeroValues<S>(sharedPointer<unsigned char>(value), keys * S::kRowChunks + threadIdx.x, kCount);
  }
  wgmmaWait<0>();
  adjust();
  if (keys < kCount) rows.template maskFrom<kCount, kSure>(keys, threadIdx.x % kWarpSize);
  if constexpr (kOnly) {
    rows.template computeAllWeights<kCount>(scale_log2);
  } else {
    rows.template computeWeights<kCount>(scale_log2, first);
  }
  if (keys < kCount) __syncthreads();  // the zeros are visible to all
  wgmmaFence();
  multiplyValues<S, 0, kCount / 16>(rows.output, rows.weights, v, !kOnly);
  wgmmaCommit();
  if constexpr (kOnly) rows.addUpSums();
  wgmmaWait<0>();
}

// Copies by TMA of one head of one sequence: 64 of its query rows, and what fits on chip of its keys and values. Each
// is asked for by one thread.
template <typename S>
struct ShortCopies {
  const AttentionMaps& maps;
  const ShortMemory<S>& memory;
  ShortBarriers& barriers;
  const int begin, length, head, key_head;

  __device__ void loadQuery(int row, int slot) const {
    if (row < length) {
      loadRows<S, kTaskRows>(maps, 0, memory.query(slot), min(length - row, kTaskRows), head, begin + row,
                             &barriers.queries[slot]);
    }
  }
  __device__ void loadKeys(int key) const {
    loadRows<S, S::kKeys>(maps, 1, memory.key(), min(length - key, S::kKeys), key_head, begin + key, &barriers.keys);
  }
  __device__ void loadValues(int key) const {
    loadRows<S, S::kKeys>(maps, 2, memory.value(), min(length - key, S::kKeys), key_head, begin + key,
                          &barriers.values);
  }
  // Loads what the block needs first, by one thread of each warp. Called by all threads.
  __device__ void loadFirst(int row, int stride, int warp) const {
    if (threadIdx.x % kWarpSize == 0) {
      if (warp == 0) loadQuery(row, 0);
      if (warp == 1) loadKeys(0);
      if (warp == 2) loadValues(0);
      if (warp == 3) loadQuery(row + stride, 1);
    }
    __syncwarp();
  }
};

// Called by all threads before the first copies.
__device__ inline void prepareCopies(const AttentionMaps& maps, ShortBarriers& barriers) {
  if (threadIdx.x < 3) {
    prefetchMap(maps.whole[threadIdx.x]);
    prefetchMap(maps.part[threadIdx.x]);
  }
  if (threadIdx.x == 0) {
    for (uint64_t* barrier : {&barriers.queries[0], &barriers.queries[1], &barriers.keys, &barriers.values}) {
      barrierInit(barrier, 1);
    }
    fenceBarrierInit();
    fenceAsyncProxy();
  }
}

template <typename S>
__global__ void __launch_bounds__(kWarpgroup, S::kBlocks)
    attentionSm90ShortKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char dynamic[];
  __shared__ ShortBarriers barriers;
  __shared__ float entries[S::kTableEntries];  // of distance biases
  const ShortMemory<S> memory{(sharedAddress(dynamic) + 1023) & ~1023u};
  prepareCopies(maps, barriers);
  const int sequence = blockIdx.x / p.H, head = blockIdx.x % p.H;
  const int first = blockIdx.y * kTaskRows, stride = gridDim.y * kTaskRows;
  const int warp = uniform(threadIdx.x / kWarpSize);
  __syncthreads();
  if (!p.early_lengths) waitForPriorGrids();
  const int start = sequenceStart(p.cu_seqlens, sequence, p.T);
  const int end = sequenceStart(p.cu_seqlens, min(sequence + 1, p.B), p.T);
  waitForPriorGrids();
  releaseNextGrid();
  const int begin = uniform(start), length = uniform(end) - begin;
  if (sequence == p.B) return zeroFiller(p, begin);
  if (first >= length) return;

  const ShortCopies<S> copies{maps, memory, barriers, begin, length, head, keyHead(p, head)};
  copies.loadFirst(first, stride, warp);
  const DistanceTable table{sharedAddress(entries), S::kTableReach};
  const float slope = S::kPositionMode == PositionMode::kSlope ? p.slopes[head] / -p.scale : 0.f;
  if constexpr (S::kPositionMode == PositionMode::kDistance) {
    fillTable(p, head, table);
    __syncthreads();
  }

  const float scale_log2 = p.scale * kLog2E;
  int on_chip = 0;  // the first key on chip
  unsigned fills = 0;
  for (int row = first, group = 0; row < length; row += stride, ++group) {
    const int slot = group & 1;
    barrierWait(&barriers.queries[slot], group >> 1 & 1);
    if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(memory.query(slot)), head, 0);
    const AttentionWorkItem item{begin + row, length - row, head};
    const auto attendAll = [&](auto count) {
      Sm90Rows<S> rows;
      constexpr int kCount = decltype(count)::value;
      attendKeys<S, kCount, true>(rows, memory, barriers, slot, 0, length, 0, scale_log2, true,
                                  [&] { applyPositions<S, kCount, false>(rows, p, head, slope, table, row, 0); });
      storeRows<S>(p, item, rows);
    };
    if ((S::kKeys <= 64 || S::kD > 64) && length <= 32) {
      attendAll(Keys<32>{});
    } else if (length <= 64) {
      attendAll(Keys<64>{});
    } else if (S::kKeys > 64 && length <= 96) {
      attendAll(Keys<(S::kKeys > 64 ? 96 : 64)>{});
    } else if (length <= S::kKeys) {
      attendAll(Keys<S::kKeys>{});
    } else {
      Sm90Rows<S> rows;
      rows.clearOutput();
      for (int key = 0; key < length; key += kLongKeys) {
        const int key_row = key % S::kKeys;
        if (key - key_row != on_chip) {
          __syncthreads();  // all have read what is overwritten
          on_chip = key - key_row;
          if (threadIdx.x == 0) {
            copies.loadKeys(on_chip);
            copies.loadValues(on_chip);
          }
          ++fills;
        }
        attendKeys<S, kLongKeys, false>(
            rows, memory, barriers, slot, key_row, min(length - key, kLongKeys), fills & 1, scale_log2, key == 0,
            [&] { applyPositions<S, kLongKeys, true>(rows, p, head, slope, table, row, key); });
      }
      rows.addUpSums();
      storeRows<S>(p, item, rows);
    }
    if (row + 2 * stride < length) {
      __syncthreads();  // all have read this Q
      if (threadIdx.x == 0) copies.loadQuery(row + 2 * stride, slot);
    }
  }
#endif
}

template <typename S>
cudaError_t launch(const AttentionParams& params, int groups, cudaStream_t stream) {
  AttentionMaps maps;
  if (!encodeMaps<S>(params, S::kKeys, maps)) return mapError();
  const auto kernel = attentionSm90ShortKernel<S>;
  return launchWithSharedMemory(kernel, dim3((params.B + 1) * params.H, groups), kWarpgroup, S::kSharedBytes, stream,
                                params, maps);
}

// Sequences are cut into blocks of 64 query rows where whole ones, which read K and V once, would not fill the GPU.
template <typename T, PositionMode kPositionMode>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  int multiprocessors = 0;
  const cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  const int64_t sequences = int64_t{params.B} * params.H;  // each counts once per head
  const auto groups = [&](int blocks) { return sequences <= int64_t{blocks} * multiprocessors ? 2 : 1; };
  if constexpr (kPositionMode ==
                PositionMode::kNone) {  // elsewhere heads of up to 32, which are rare, are computed as 64
    if (params.D <= 32 && params.max_seq_len <= 64)
      return launch<ShortShape<T, 32, 64, 6, kPositionMode>>(params, 1, stream);
    if (params.D <= 32) return launch<ShortShape<T, 32, 128, 4, kPositionMode>>(params, groups(4), stream);
  }
  if (params.D > 64) return launch<ShortShape<T, 128, 128, 2, kPositionMode>>(params, groups(2), stream);
  if (params.max_seq_len <= 64) return launch<ShortShape<T, 64, 64, 5, kPositionMode>>(params, 1, stream);
  // Three blocks per multiprocessor have more registers each, and all run at once.
  if (2 * sequences <= 3 * multiprocessors) return launch<ShortShape<T, 64, 128, 3, kPositionMode>>(params, 2, stream);
  return launch<ShortShape<T, 64, 128, 4, kPositionMode>>(params, groups(4), stream);
}

}  // namespace

template <typename T>
cudaError_t launchShortSm90(const AttentionParams& params, cudaStream_t stream) {
  return dispatchPositionMode(params, [&](auto mode) { return chooseShape<T, decltype(mode)::value>(params, stream); });
}

}  // namespace padfree
