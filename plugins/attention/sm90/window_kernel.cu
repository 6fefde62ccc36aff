// SPDX-License-Identifier: Apache-2.0
// Variable-length attention for Hopper where rows see a small window of keys. A block of one warpgroup takes a run of
// query rows of one head and goes through it in groups of 64. The keys that a group sees are on chip at once, in blocks
// of 64 that come by TMA and stay for the groups that follow, while one more block is on its way: so each key is
// fetched once a run, and none outside of the windows. No list of tasks: runs are numbered as in query_tiles.cuh.
//
// A group begins with the keys in its own places, of which each row sees one at least, so that references of
// exponentials are never -infinity.
#include <algorithm>

#include "attention/kernels.h"
#include "attention/query_tiles.cuh"
#include "attention/sm90/maps.cuh"
#include "attention/sm90/positions.cuh"
#include "attention/sm90/rows.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

constexpr int kMaxPlaces = 12;      // for blocks of keys on chip
constexpr int kMaxGroupsOfRun = 8;  // longer runs fetch hardly less

struct WindowBarriers {
  uint64_t queries, keys[kMaxPlaces], values[kMaxPlaces];  // complete when the copies have arrived
};

// kBlocksAhead: blocks of keys on their way while a group is computed. kResidentBlocks blocks of threads on a
// multiprocessor.
template <typename Element, int kHeadSize, int kBlocksAhead, int kResidentBlocks>
struct WindowShape : Sm90Tiles<Element, kHeadSize, kTaskRows> {
  using Tiles = Sm90Tiles<Element, kHeadSize, kTaskRows>;
  static constexpr Places kPlaces = Places::kWindow;
  static constexpr int kAhead = kBlocksAhead, kBlocks = kResidentBlocks;
  static constexpr int sharedBytes(int places) {
    return Tiles::kQueryBytes + 2 * places * Tiles::kKeyBytes + static_cast<int>(sizeof(WindowBarriers));
  }
};

// How the kernel goes through runs.
struct WindowRuns {
  int rows;           // of a run
  int before, after;  // blocks of 64 keys that a group sees before and behind its own
  int places;         // for blocks of keys on chip
};

// Where a block's data are; base is a multiple of 1024 in shared space.
template <typename S>
struct WindowMemory {
  unsigned base;
  int places;
  __device__ unsigned query() const { return base; }
  __device__ unsigned key(int place) const { return base + S::kQueryBytes + place * S::kKeyBytes; }
  __device__ unsigned value(int place) const { return key(places + place); }
};

template <typename S>
__global__ void __launch_bounds__(kWarpgroup, S::kBlocks)
    attentionSm90WindowKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionMaps maps,
                              const WindowRuns runs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const WindowMemory<S> memory{sharedAddress(dynamic), runs.places};
  // Behind the data, so that nothing has to be left out to align these: it is what the last block has no room for.
  WindowBarriers& barriers = *sharedPointer<WindowBarriers>(memory.value(runs.places));
  const int thread = threadIdx.x, lane = thread % kWarpSize, warp = uniform(thread / kWarpSize);
  if (thread < 3) {
    prefetchMap(maps.whole[thread]);
    prefetchMap(maps.part[thread]);
  }
  if (thread < kMaxPlaces) {
    barrierInit(&barriers.keys[thread], 1);
    barrierInit(&barriers.values[thread], 1);
    if (thread == 0) barrierInit(&barriers.queries, 1);
    fenceBarrierInit();
    fenceAsyncProxy();
  }
  const int number = blockIdx.x / p.H, head = blockIdx.x % p.H, key_head = keyHead(p, head);
  __syncthreads();
  waitForPriorGrids();
  releaseNextGrid();
  const QueryTile run = findQueryTile(p.cu_seqlens, p.B, p.T, number, runs.rows);
  if (run.rows <= 0) return;
  if (run.filler) return zeroRows(p, head, run.begin + run.first, run.rows);

  // Blocks of keys are numbered from the first that the run sees; `own`: those in the places of a group's rows.
  const int begin = uniform(run.begin), length = uniform(run.length), first = uniform(run.first);
  const int groups = ceilDiv(uniform(run.rows), kTaskRows);
  const int origin = max(first / kTaskRows - runs.before, 0);
  const int own_first = first / kTaskRows - origin;
  const int blocks = min(own_first + groups + runs.after, (length - 1) / kTaskRows + 1 - origin);
  const auto loadQuery = [&](int group) {
    const int row = first + group * kTaskRows;
    loadRows<S, kTaskRows>(maps, 0, memory.query(), min(length - row, kTaskRows), head, begin + row, &barriers.queries);
  };
  const auto loadBlock = [&](int operand, int block) {
    const int key = (origin + block) * kTaskRows, place = block % runs.places;
    loadRows<S, kTaskRows>(maps, operand, operand == 1 ? memory.key(place) : memory.value(place),
                           min(length - key, kTaskRows), key_head, begin + key,
                           operand == 1 ? &barriers.keys[place] : &barriers.values[place]);
  };
  const int filled = min(blocks, runs.places);
  if (lane == 0) {  // the group's own block is what it needs first
    if (warp == 0) loadQuery(0);
    if (warp == 1 || warp == 2) {
      for (int i = 0, block = own_first; i < filled; ++i, block = block + 1 < filled ? block + 1 : 0) {
        loadBlock(warp, block);
      }
    }
  }
  __syncwarp();

  const Window window = windowOf(p);
  const float scale_log2 = p.scale * kLog2E;
  const unsigned q = panelDescriptor(memory.query());
  for (int group = 0; group < groups; ++group) {
    const int row = first + group * kTaskRows, own = own_first + group;
    const int before = min(runs.before, own), after = min(runs.after, blocks - 1 - own);
    Sm90Rows<S> rows;
    rows.clearOutput();
    const auto multiplyKeys = [&](int block) {
      const int place = block % runs.places;
      const unsigned k = panelDescriptor(memory.key(place));
      barrierWait(&barriers.keys[place], block / runs.places & 1);
      wgmmaFence();
#pragma unroll
      for (int d = 0; d < S::kD / 16; ++d) {
        wgmmaShared<T>(rows.scores, q + ((d / 4 * S::kQueryPanelBytes + d % 4 * 32) >> 4),
                       k + ((d / 4 * S::kKeyPanelBytes + d % 4 * 32) >> 4), d > 0);
      }
      wgmmaCommit();
    };
    barrierWait(&barriers.queries, group & 1);
    if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(memory.query()), head, 0);
    multiplyKeys(own);
    wgmmaWait<0>();
    for (int n = 0; n <= before + after; ++n) {  // the own block, those behind it, those before it
      const bool last = n == before + after;
      if (last && group + 1 < groups) {
        namedBarrier(kGroupBarrier, kWarpgroup);  // all have multiplied this Q
        if (thread == 0) loadQuery(group + 1);
        __syncwarp();
      }
      const int away = n <= after ? n : after - n, block = own + away, place = block % runs.places;
      const int keys = length - row - away * kTaskRows;
      hideOutside<kTaskRows>(rows, window, away * kTaskRows - warp * kWarpRows);
      if (keys < kTaskRows) rows.template maskFrom<kTaskRows>(keys, lane);
      rows.template weighStep<kTaskRows>(scale_log2, n == 0);
      barrierWait(&barriers.values[place], block / runs.places & 1);
      if (keys < kTaskRows) {  // a weight of 0 does not silence a NaN: rows of V beyond the sequence become zeros
        unsigned char* const values = sharedPointer<unsigned char>(memory.value(place));
        for (int i = keys * 8 + thread; i < kTaskRows * 8; i += kWarpgroup) {
#pragma unroll
          for (int panel = 0; panel < S::kPanels; ++panel) {
            *reinterpret_cast<uint4*>(values + panel * S::kKeyPanelBytes + i * 16) = uint4{};
          }
        }
        fenceAsyncProxy();
        namedBarrier(kGroupBarrier, kWarpgroup);
      }
      const unsigned v = panelDescriptor(memory.value(place));
      wgmmaFence();
#pragma unroll
      for (int k = 0; k < kTaskRows / 16; ++k) {
#pragma unroll
        for (int panel = 0; panel < S::kPanels; ++panel) {
          wgmmaRegisters<T>(rows.output[panel], rows.weights[k],
                            v + ((panel * S::kKeyPanelBytes + k * 16 * kPanelRowBytes) >> 4), true);
        }
      }
      wgmmaCommit();
      if (!last) multiplyKeys(n + 1 <= after ? own + n + 1 : own + after - n - 1);
      wgmmaWait<0>();
    }
    const int next = own - runs.before + runs.places;  // takes the place of the block that no group sees any more
    if (group + 1 < groups && own >= runs.before && next < blocks) {
      namedBarrier(kGroupBarrier, kWarpgroup);  // all have multiplied that one
      if (lane == 0 && (warp == 1 || warp == 2)) loadBlock(warp, next);
      __syncwarp();
    }
    rows.addUpSums();
    storeRows<S>(p, AttentionJob{begin + row, length - row, head}, rows);
  }
#endif
}

template <typename S>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  int multiprocessors = 0;
  cudaError_t status = countMultiprocessors(multiprocessors);
  if (status != cudaSuccess) return status;
  const int64_t groups = int64_t{params.T} * params.H / kTaskRows, at_once = int64_t{multiprocessors} * S::kBlocks;
  const int groups_of_run =
      static_cast<int>(std::clamp(ceilDiv(groups, at_once), int64_t{1}, int64_t{kMaxGroupsOfRun}));
  const int before = ceilDiv(params.window_left, kTaskRows), after = ceilDiv(params.window_right, kTaskRows);
  const WindowRuns runs{groups_of_run * kTaskRows, before, after, before + 1 + after + S::kAhead};
  const int shared_bytes = S::sharedBytes(runs.places);
  AttentionMaps maps;
  if (!encodeMaps(params, kTaskRows, kTaskRows, maps)) return cudaErrorInvalidValue;
  const auto kernel = attentionSm90WindowKernel<S>;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  const unsigned blocks = countQueryTiles(params.T, params.B, runs.rows) * static_cast<unsigned>(params.H);
  return launchDependent(kernel, dim3(blocks), dim3(kWarpgroup), shared_bytes, stream, params, maps, runs);
}

template <typename T>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  return params.D <= 64 ? launch<WindowShape<T, 64, 1, 3>>(params, stream)
                        : launch<WindowShape<T, 128, 0, 2>>(params, stream);
}

}  // namespace

cudaError_t launchAttentionSm90Window(const AttentionParams& params, cudaStream_t stream) {
  return params.type == DataType::kFloat16 ? chooseShape<half>(params, stream)
                                           : chooseShape<__nv_bfloat16>(params, stream);
}

}  // namespace padfree
