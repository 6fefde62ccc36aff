// SPDX-License-Identifier: Apache-2.0
// Variable-length attention for Hopper where rows see a small window of keys: a block takes a tile of query rows of one
// head, 64 a warpgroup, with all keys that they see. These are on chip at once, in blocks of 64 that come by TMA and are
// shared by the warpgroups; keys outside of the windows are never loaded. No list of tasks: tiles are numbered as in
// query_tiles.cuh.
//
// A warpgroup begins with the keys in its own places, of which each row sees one at least, so that references of
// exponentials are never -infinity.
#include "attention/kernels.h"
#include "attention/query_tiles.cuh"
#include "attention/sm90_maps.cuh"
#include "attention/sm90_positions.cuh"
#include "attention/sm90_rows.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

constexpr int kMaxKeyBlocks = 12;

// kWidth warpgroups a block, kResidentBlocks blocks on a multiprocessor.
template <typename Element, int kHeadSize, int kWidth, int kResidentBlocks>
struct WindowShape : Sm90Tiles<Element, kHeadSize, kTaskRows> {
  using Tiles = Sm90Tiles<Element, kHeadSize, kTaskRows>;
  static constexpr bool kPositions = true;
  static constexpr int kGroups = kWidth, kRows = kWidth * kTaskRows;
  static constexpr int kThreads = kWidth * kWarpgroup, kBlocks = kResidentBlocks;
  static constexpr int sharedBytes(int key_blocks) {
    return kGroups * Tiles::kQueryBytes + 2 * key_blocks * Tiles::kKeyBytes + 1024;  // the last to align
  }
};

// Blocks of 64 keys that rows see before and behind their own.
struct KeyBlocks {
  int before, after;
};

// Where a block's data are; base is a multiple of 1024 in shared space.
template <typename S>
struct WindowMemory {
  unsigned base;
  int key_blocks;
  __device__ unsigned query(int group) const { return base + group * S::kQueryBytes; }
  __device__ unsigned key(int block) const { return query(S::kGroups) + block * S::kKeyBytes; }
  __device__ unsigned value(int block) const { return key(key_blocks + block); }
};

template <int kGroups>
struct WindowBarriers {
  uint64_t queries[kGroups], keys[kMaxKeyBlocks], values[kMaxKeyBlocks];  // complete when the copies have arrived
};

// Rows of a head become zeros.
template <typename S>
__device__ inline void zeroRows(const AttentionParams& p, int head, int token, int rows) {
  const int chunks = p.D / 8;
  uint4* const zeros = static_cast<uint4*>(p.y) + (static_cast<int64_t>(token) * p.H + head) * chunks;
  for (int i = threadIdx.x; i < rows * chunks; i += S::kThreads) {
    zeros[static_cast<int64_t>(i / chunks) * p.H * chunks + i % chunks] = uint4{};
  }
}

// Starts the copies of all that the tile needs, what is needed first first. Block i of the keys has those from
// tile.first + (i - before) * 64 on.
template <typename S>
__device__ inline void loadTile(const AttentionMaps& maps, const WindowMemory<S>& memory,
                                WindowBarriers<S::kGroups>& barriers, const QueryTile& tile, int before, int head,
                                int key_head) {
  const int warp = uniform(threadIdx.x / kWarpSize);
  if (threadIdx.x % kWarpSize == 0) {
    constexpr int kWarps = S::kThreads / kWarpSize;
    for (int i = warp; i < S::kGroups + 2 * memory.key_blocks; i += kWarps) {
      if (i < S::kGroups) {
        const int rows = min(tile.rows - i * kTaskRows, kTaskRows);
        if (rows > 0) {
          loadRows<S, kTaskRows>(maps, 0, memory.query(i), rows, head, tile.begin + tile.first + i * kTaskRows,
                                 &barriers.queries[i]);
        }
        continue;
      }
      const bool values = i >= S::kGroups + memory.key_blocks;
      const int turn = i - S::kGroups - (values ? memory.key_blocks : 0) + before;
      const int block = turn < memory.key_blocks ? turn : turn - memory.key_blocks;
      const int key = tile.first + (block - before) * kTaskRows, rows = min(tile.length - key, kTaskRows);
      if (key < 0 || rows <= 0) continue;
      loadRows<S, kTaskRows>(maps, values ? 2 : 1, values ? memory.value(block) : memory.key(block), rows, key_head,
                             tile.begin + key, values ? &barriers.values[block] : &barriers.keys[block]);
    }
  }
  __syncwarp();
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    attentionSm90WindowKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionMaps maps,
                              const KeyBlocks around) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  extern __shared__ unsigned char dynamic[];
  __shared__ WindowBarriers<S::kGroups> barriers;
  const WindowMemory<S> memory{(sharedAddress(dynamic) + 1023) & ~1023u, S::kGroups + around.before + around.after};
  if (threadIdx.x < 3) {
    prefetchMap(maps.whole[threadIdx.x]);
    prefetchMap(maps.part[threadIdx.x]);
  }
  if (threadIdx.x < kMaxKeyBlocks) {
    barrierInit(&barriers.keys[threadIdx.x], 1);
    barrierInit(&barriers.values[threadIdx.x], 1);
    if (threadIdx.x < S::kGroups) barrierInit(&barriers.queries[threadIdx.x], 1);
    fenceBarrierInit();
    fenceAsyncProxy();
  }
  const int number = blockIdx.x / p.H, head = blockIdx.x % p.H;
  __syncthreads();
  waitForPriorGrids();
  releaseNextGrid();
  const QueryTile tile = findQueryTile<S::kRows>(p.cu_seqlens, p.B, p.T, number);
  if (tile.rows <= 0) return;
  if (tile.filler) return zeroRows<S>(p, head, tile.begin + tile.first, tile.rows);
  loadTile<S>(maps, memory, barriers, tile, around.before, head, keyHead(p, head));

  const int group = uniform(threadIdx.x / kWarpgroup), warp = uniform(threadIdx.x % kWarpgroup / kWarpSize);
  const int in_group = threadIdx.x % kWarpgroup, lane = threadIdx.x % kWarpSize;
  const int row = uniform(tile.first) + group * kTaskRows, length = uniform(tile.length);
  if (row >= length) return;
  const Window window = windowOf(p);
  const float scale_log2 = p.scale * kLog2E;
  const int before = min(around.before, row / kTaskRows);  // tile.first is a multiple of 64
  const int after = min(around.after, (length - 1 - row) / kTaskRows);
  // The n-th block of keys that this warpgroup looks at, counted from its own: first the own one, then those behind it.
  const auto blockAt = [&](int n) { return n <= after ? n : after - n; };
  const unsigned query = memory.query(group), q = panelDescriptor(query);
  const int own = around.before + group;

  Sm90Rows<S> rows;
  rows.clearOutput();
  const auto multiplyKeys = [&](int block) {
    const unsigned k = panelDescriptor(memory.key(own + block));
    barrierWait(&barriers.keys[own + block], 0);
    wgmmaFence();
#pragma unroll
    for (int d = 0; d < S::kD / 16; ++d) {
      wgmmaShared<T>(rows.scores, q + ((d / 4 * S::kQueryPanelBytes + d % 4 * 32) >> 4),
                     k + ((d / 4 * S::kKeyPanelBytes + d % 4 * 32) >> 4), d > 0);
    }
    wgmmaCommit();
  };
  barrierWait(&barriers.queries[group], 0);
  if (p.q.bias) addQueryBias<S>(p, sharedPointer<unsigned char>(query), head, group);
  multiplyKeys(0);
  wgmmaWait<0>();
  for (int n = 0;; ++n) {
    const int block = blockAt(n), keys = length - row - block * kTaskRows;
    hideOutside<kTaskRows>(rows, window, block * kTaskRows - warp * kWarpRows);
    if (keys < kTaskRows) rows.template maskFrom<kTaskRows>(keys, lane);
    rows.template weighStep<kTaskRows>(scale_log2, n == 0);
    barrierWait(&barriers.values[own + block], 0);
    if (keys < kTaskRows) {  // a weight of 0 does not silence a NaN: rows of V beyond the sequence become zeros
      unsigned char* const values = sharedPointer<unsigned char>(memory.value(own + block));
      for (int i = keys * 8 + in_group; i < kTaskRows * 8; i += kWarpgroup) {
#pragma unroll
        for (int panel = 0; panel < S::kPanels; ++panel) {
          *reinterpret_cast<uint4*>(values + panel * S::kKeyPanelBytes + i * 16) = uint4{};
        }
      }
      fenceAsyncProxy();
      namedBarrier(kGroupBarrier + group, kWarpgroup);
    }
    const unsigned v = panelDescriptor(memory.value(own + block));
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
    if (n == before + after) break;
    multiplyKeys(blockAt(n + 1));
    wgmmaWait<0>();
  }
  rows.addUpSums();
  wgmmaWait<0>();
  storeRows<S>(p, AttentionJob{tile.begin + row, length - row, head}, rows);
#endif
}

template <typename S>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  const KeyBlocks around{ceilDiv(params.window_left, kTaskRows), ceilDiv(params.window_right, kTaskRows)};
  const int shared_bytes = S::sharedBytes(S::kGroups + around.before + around.after);
  AttentionMaps maps;
  if (!encodeMaps(params, kTaskRows, kTaskRows, maps)) return cudaErrorInvalidValue;
  const auto kernel = attentionSm90WindowKernel<S>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  const unsigned blocks = countQueryTiles(params.T, params.B, S::kRows) * static_cast<unsigned>(params.H);
  return launchDependent(kernel, dim3(blocks), dim3(S::kThreads), shared_bytes, stream, params, maps, around);
}

template <typename T>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  return params.D <= 64 ? launch<WindowShape<T, 64, 2, 2>>(params, stream)
                        : launch<WindowShape<T, 128, 1, 2>>(params, stream);
}

}  // namespace

cudaError_t launchAttentionSm90Window(const AttentionParams& params, cudaStream_t stream) {
  return params.type == DataType::kFloat16 ? chooseShape<half>(params, stream)
                                           : chooseShape<__nv_bfloat16>(params, stream);
}

}  // namespace padfree
