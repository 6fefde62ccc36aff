// SPDX-License-Identifier: Apache-2.0
// Variable-length attention for Hopper where rows see a small window of keys. A block of one warpgroup takes a run of
// query rows of one head and goes through it in groups of 64. The keys that a group sees are on chip at once, in blocks
// of 64 that come by TMA and stay for the groups that follow, while one more block is on its way: so each key is
// fetched once per run, and none outside of the windows. No list of tasks: runs are numbered as in query_tiles.cuh.
//
// Every row sees its own position, so that no row of a sequence has -infinity for its largest score. Rows after the
// sequence may: they become NaN, and are not stored.
#include <algorithm>

#include "attention/kernels.h"
#include "attention/query_tiles.cuh"
#include "attention/sm90/maps.cuh"
#include "attention/sm90/products.cuh"
#include "attention/sm90/window_rows.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

constexpr int kMaxGroupsOfRun = 8;  // longer runs would save hardly any fetches

// kBlocksAhead: blocks of keys in flight while a group is computed. kResidentBlocks blocks of threads on a
// multiprocessor.
template <typename Element, int kHeadSize, int kBlocksAhead, int kResidentBlocks>
struct WindowShape : Sm90Tiles<Element, kHeadSize, kTaskRows> {
  using Tiles = Sm90Tiles<Element, kHeadSize, kTaskRows>;
  struct Near : Sm90Tiles<Element, kHeadSize, kNearKeyCount> {  // all keys that a group sees
    static constexpr PositionMode kPositionMode = PositionMode::kWindow;
  };
  static constexpr int kBlocks = kResidentBlocks;
  static constexpr int kRoom = kNearBlocks + kBlocksAhead;  // slots for blocks of keys
};

// Complete when the copies have arrived.
template <typename S>
struct WindowBarriers {
  uint64_t queries, keys[S::kRoom], values[S::kRoom];
};

template <typename S>
__device__ inline void initialize(WindowBarriers<S>& barriers, int thread) {
  if (thread >= S::kRoom) return;
  barrierInit(&barriers.keys[thread], 1);
  barrierInit(&barriers.values[thread], 1);
  if (thread == 0) barrierInit(&barriers.queries, 1);
  fenceBarrierInit();
  fenceAsyncProxy();
}

// How the kernel goes through runs.
struct WindowRuns {
  int rows;           // of a run
  int before, after;  // blocks of 64 keys that a group sees before and after its own: 0 or 1
};

// Where a block's data are; base is a multiple of 1024 in shared space.
template <typename S>
struct WindowMemory {
  static constexpr int kBytes = S::kQueryBytes + 2 * S::kRoom * S::kKeyBytes;
  unsigned base;
  __device__ unsigned query() const { return base; }
  __device__ unsigned key(int slot) const { return base + S::kQueryBytes + slot * S::kKeyBytes; }
  __device__ unsigned value(int slot) const { return key(S::kRoom + slot); }
};

// A block of keys that takes the place of one that no group sees any more.
struct NextBlock {
  bool exists;
  int number, slot;
};

// The copies that a block asks for: of the query rows of a group, and of blocks of keys and values. Blocks of keys are
// numbered from the first that the run sees.
template <typename S>
struct WindowLoads {
  const AttentionMaps& maps;
  const WindowMemory<S>& memory;
  WindowBarriers<S>& barriers;
  int head, key_head;
  int begin, length, first;          // of the sequence, and the run's first row in it
  int origin;                        // of blocks of keys
  int first_blocks, initial_blocks;  // blocks that the first group sees, and that fit at first

  __device__ void loadQuery(int row) const {
    loadRows<S, kTaskRows>(maps, 0, memory.query(), min(length - row, kTaskRows), head, begin + row, &barriers.queries);
  }
  __device__ void loadBlock(int operand, int block, int slot) const {
    const int key = (origin + block) * kTaskRows;
    loadRows<S, kTaskRows>(maps, operand, operand == 1 ? memory.key(slot) : memory.value(slot),
                           min(length - key, kTaskRows), key_head, begin + key,
                           operand == 1 ? &barriers.keys[slot] : &barriers.values[slot]);
  }
  __device__ void loadBlocks(int operand, int from, int to) const {
    for (int block = from; block < to; ++block) loadBlock(operand, block, block);
  }
  // While a group is computed: the next one's rows, and further blocks of keys. During the first group, also all blocks
  // for which there is room.
  __device__ void startNext(int warp, int lane, int group, int groups, int row, const NextBlock& next) const {
    if (lane == 0) {
      if (warp == 0 && group + 1 < groups) loadQuery(row + kTaskRows);
      if (warp == 1) {
        if (group == 0) loadBlocks(1, first_blocks, initial_blocks);
        if (next.exists) loadBlock(1, next.number, next.slot);
      }
      if (warp == 2 && group == 0) loadBlocks(2, first_blocks, initial_blocks);
    }
    __syncwarp();
  }
  // What the first group needs, one kind per warp.
  __device__ void start(int warp, int lane) const {
    if (lane == 0) {
      if (warp == 0) loadQuery(first);
      if (warp == 1) loadBlocks(1, 0, first_blocks);
      if (warp == 2) loadBlocks(2, 0, first_blocks);
    }
    __syncwarp();
  }
};

// The slots of the blocks before, at and after a group's, and the phases of their barriers. One that does not exist has
// the group's own slot, and none of its keys is seen.
template <typename S>
__device__ inline void findSlots(int own_slot, int own_parity, bool has_before, bool has_after,
                                 int (&slots)[kNearBlocks], int (&parities)[kNearBlocks]) {
#pragma unroll
  for (int i = 0; i < kNearBlocks; ++i) {
    const int slot = own_slot + (i == 0 ? -has_before : i == 2 ? has_after : 0);
    const bool over = slot == S::kRoom, under = slot < 0;
    slots[i] = over ? 0 : under ? S::kRoom - 1 : slot;
    parities[i] = own_parity ^ (over || under);
  }
}

// The number of a block of keys as an argument that is known when compiling.
template <int kNumber>
using Block = std::integral_constant<int, kNumber>;

// Waits for the blocks that a group sees. The group before has waited for all but the last.
template <typename S>
__device__ void waitNearBlocks(uint64_t (&block_barriers)[S::kRoom], const int (&slots)[kNearBlocks],
                               const int (&parities)[kNearBlocks], bool first_group) {
  if (first_group) {
    barrierWait(&block_barriers[slots[0]], parities[0]);
    barrierWait(&block_barriers[slots[1]], parities[1]);
  }
  barrierWait(&block_barriers[slots[2]], parities[2]);
}

// Scores of a group's rows and all keys that they see. The caller waits.
template <typename S, typename Near>
__device__ void multiplyNearKeys(NearRows<Near>& rows, unsigned q, const WindowMemory<S>& memory,
                                 const int (&slots)[kNearBlocks]) {
  wgmmaFence();
#pragma unroll
  for (int i = 0; i < kNearBlocks; ++i) {
    multiplyKeys<S>(reinterpret_cast<float (&)[kTaskRows / 8][4]>(rows.scores[i * kTaskRows / 8]), q,
                    panelDescriptor(memory.key(slots[i])));
  }
  wgmmaCommit();
}

// Weights of a group's rows, times the values of all keys that they see; wait() waits for these. The neighbours are
// multiplied while the weights of the group's own keys are computed. The caller waits for the last products.
template <typename S, typename Near, typename Wait>
__device__ void multiplyNearValues(NearRows<Near>& rows, const WindowMemory<S>& memory, const int (&slots)[kNearBlocks],
                                   int warp, float scale_log2, const Wait& wait) {
  unsigned values[kNearBlocks];
#pragma unroll
  for (int i = 0; i < kNearBlocks; ++i) values[i] = panelDescriptor(memory.value(slots[i]));
  constexpr int kBlockChunks = NearRows<Near>::kBlockChunks, kVisibleChunks = NearRows<Near>::kVisibleChunks;
  const auto multiplyBlock = [&](auto block, bool accumulate) {
    constexpr int kBlock = decltype(block)::value, kFirst = kBlock * kBlockChunks;
    multiplyValues<S, kFirst, kFirst + kBlockChunks>(rows.output, rows.weights, values[kBlock], accumulate);
    wgmmaCommit();
  };
  rows.template computeChunkWeights<0, kBlockChunks>(warp, scale_log2);
  rows.template computeChunkWeights<2 * kBlockChunks, kVisibleChunks>(warp, scale_log2);
  wait();
  wgmmaFence();
  multiplyBlock(Block<0>{}, false);
  multiplyBlock(Block<2>{}, true);
  rows.template computeChunkWeights<kBlockChunks, 2 * kBlockChunks>(warp, scale_log2);
  wgmmaFence();
  multiplyBlock(Block<1>{}, true);
}

// The last rows of V are beyond the sequence: from key `end` on they become zeros.
template <typename S>
__device__ void zeroEnd(const WindowMemory<S>& memory, WindowBarriers<S>& barriers, const int (&slots)[kNearBlocks],
                        const int (&parities)[kNearBlocks], int end) {
  const int i = end / kTaskRows, slot = i == 1 ? slots[1] : slots[2];
  barrierWait(&barriers.values[slot], i == 1 ? parities[1] : parities[2]);
  zeroValues<S>(sharedPointer<unsigned char>(memory.value(slot)), end % kTaskRows * S::kRowChunks + threadIdx.x,
                kTaskRows);
}

template <typename S>
__global__ void __launch_bounds__(kWarpgroup, S::kBlocks)
    attentionSm90WindowKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionMaps maps,
                              const WindowRuns runs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Near = typename S::Near;
  static_assert(Near::kPositionMode == PositionMode::kWindow);
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const WindowMemory<S> memory{sharedAddress(dynamic)};
  // After the data, which are aligned, so that no padding is needed: the last block has no room for any.
  WindowBarriers<S>& barriers = *sharedPointer<WindowBarriers<S>>(memory.value(S::kRoom));
  const int thread = threadIdx.x, lane = thread % kWarpSize, warp = uniform(thread / kWarpSize);
  if (thread < 3) {
    prefetchMap(maps.whole[thread]);
    prefetchMap(maps.part[thread]);
  }
  initialize<S>(barriers, thread);
  const int number = blockIdx.x / p.H, head = blockIdx.x % p.H, key_head = keyHead(p, head);
  __syncthreads();
  if (!p.early_lengths) waitForPriorGrids();
  const QueryTile run = findQueryTile(p.cu_seqlens, p.B, p.T, number, runs.rows);
  waitForPriorGrids();
  releaseNextGrid();
  if (run.rows <= 0) return;
  if (run.filler) return zeroRows(p, head, run.begin + run.first, run.rows);

  // `own`: the blocks of keys at the positions of a group's rows.
  const int begin = uniform(run.begin), length = uniform(run.length), first = uniform(run.first);
  const int groups = ceilDiv(uniform(run.rows), kTaskRows);
  const int origin = max(first / kTaskRows - runs.before, 0), own_first = first / kTaskRows - origin;
  const int blocks = min(own_first + groups + runs.after, (length - 1) / kTaskRows + 1 - origin);
  const int first_blocks = min(blocks, own_first + 2), initial_blocks = min(blocks, S::kRoom);
  const WindowLoads<S> loads{maps,   memory, barriers, head,         key_head,      begin,
                             length, first,  origin,   first_blocks, initial_blocks};
  loads.start(warp, lane);

  const Window window = windowOf(p);
  const bool narrow = window.left < kNearKeys || window.right < kNearKeys;
  const float scale_log2 = p.scale * kLog2E;
  const unsigned q = panelDescriptor(memory.query());
  int own_slot = own_first, own_parity = 0;
  for (int group = 0; group < groups; ++group) {
    const int row = first + group * kTaskRows, own = own_first + group;
    const bool has_before = runs.before > 0 && own > 0, has_after = own + 1 < blocks;
    int slots[kNearBlocks], parities[kNearBlocks];
    findSlots<S>(own_slot, own_parity, has_before, has_after, slots, parities);
    if (++own_slot == S::kRoom) {
      own_slot = 0;
      own_parity ^= 1;
    }
    const auto waitBlocks = [&](uint64_t (&block_barriers)[S::kRoom]) {
      waitNearBlocks<S>(block_barriers, slots, parities, group == 0);
    };
    NearRows<Near> rows;
    barrierWait(&barriers.queries, group & 1);
    if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(memory.query()), head, 0);
    waitBlocks(barriers.keys);
    multiplyNearKeys<S>(rows, q, memory, slots);
    const int end = min(length - row + kTaskRows,
                        has_after ? kNearKeyCount : 2 * kTaskRows);  // of keys
    if (end % kTaskRows > 0) zeroEnd(memory, barriers, slots, parities, end);
    wgmmaWait<0>();
    const int next = own - runs.before + S::kRoom;  // overwrites the block that no group sees any more
    const NextBlock next_block{own >= runs.before && next < blocks, next, runs.before ? slots[0] : slots[1]};
    namedBarrier(kGroupBarrier, kWarpgroup);  // all have multiplied this Q, and written zeros
    loads.startNext(warp, lane, group, groups, row, next_block);
    if (narrow) maskOutside<kNearKeyCount>(rows, window, -kTaskRows - warp * kWarpRows);
    if (end < kNearKeyCount) rows.template maskFrom<kNearKeyCount, kTaskRows>(end, lane);
    rows.selectVisibleChunks(warp, has_before);
    rows.findShift(scale_log2);

    multiplyNearValues<S>(rows, memory, slots, warp, scale_log2, [&] { waitBlocks(barriers.values); });
    rows.addUpSums();
    wgmmaWait<0>();
    if (next_block.exists) {
      namedBarrier(kGroupBarrier, kWarpgroup);  // all have multiplied that V
      if (warp == 2 && lane == 0) loads.loadBlock(2, next_block.number, next_block.slot);
      __syncwarp();
    }
    storeRows<Near>(p, AttentionWorkItem{begin + row, length - row, head}, rows);
  }
#endif
}

template <typename S>
cudaError_t launchWindow(const AttentionParams& params, cudaStream_t stream) {
  if (!seesNearKeys(params)) return cudaErrorInvalidValue;
  int multiprocessors = 0;
  const cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  const int64_t groups = int64_t{params.T} * params.H / kTaskRows, at_once = int64_t{multiprocessors} * S::kBlocks;
  const int groups_of_run =
      static_cast<int>(std::clamp(ceilDiv(groups, at_once), int64_t{1}, int64_t{kMaxGroupsOfRun}));
  const WindowRuns runs{groups_of_run * kTaskRows, params.window_left > 0, params.window_right > 0};
  const int shared_bytes = WindowMemory<S>::kBytes + static_cast<int>(sizeof(WindowBarriers<S>));
  AttentionMaps maps;
  if (!encodeMaps<S>(params, kTaskRows, maps)) return mapError();
  const auto kernel = attentionSm90WindowKernel<S>;
  const unsigned blocks = countQueryTiles(params.T, params.B, runs.rows) * static_cast<unsigned>(params.H);
  return launchWithSharedMemory(kernel, blocks, kWarpgroup, shared_bytes, stream, params, maps, runs);
}

template <typename T>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  return params.D <= 64 ? launchWindow<WindowShape<T, 64, 1, 3>>(params, stream)
                        : launchWindow<WindowShape<T, 128, 0, 2>>(params, stream);
}

}  // namespace

cudaError_t launchAttentionSm90Window(const AttentionParams& params, cudaStream_t stream) {
  return params.type == DataType::kFloat16 ? chooseShape<half>(params, stream)
                                           : chooseShape<__nv_bfloat16>(params, stream);
}

}  // namespace padfree
