// SPDX-License-Identifier: Apache-2.0
// Attention with a disentangled bias (DeBERTa) for Hopper, heads of up to 64 columns:
//   s(i, j) = scale * (q_i . k_j + q_i . k_position[j - i] + k_j . q_position[j - i]).
// A block of one warpgroup takes 64 query rows of a head and goes through the keys in steps of 64. A step's loads begin
// when the previous step's products are done; three blocks per multiprocessor hide their latency.
//
// 64 rows and 64 keys meet at 127 distances, which lie in two chunks of 64 rows of either table, the near and the far
// one; the far chunk of a step is the near one of the next step. Row r and key n meet in row n + 63 - r of them: that
// is row (n + 63 - r) % 64 of the near chunk where n <= r, and of the far one where n > r. So of the 64 x 64 products
// with each chunk, those that are needed fill one array of 64 x 64, in which every score finds its own. They pass
// through shared memory in fp32: products of keys, because they lie in other lanes than the scores that need them;
// products of rows within a warp.
#include "attention/kernels.h"
#include "attention/query_tiles.cuh"
#include "attention/sm90/disentangled_products.cuh"
#include "attention/sm90/maps.cuh"
#include "attention/sm90/rows.cuh"
#include "common/dependent_launch.cuh"
#include "common/ptx/mma.cuh"

namespace padfree {
namespace {

constexpr int kBlocks = 3;  // on a multiprocessor

// Tables as TMA sees them, [2R + 1, H, D], in boxes of a chunk and of one row.
struct PositionMaps {
  CUtensorMap chunk[2], row[2];  // k_position, q_position
};

template <typename Element>
struct DisentangledShape : Sm90Tiles<Element, 64, kTaskRows> {
  static constexpr PositionMode kPositionMode = PositionMode::kNone;
};

// Shared memory in bytes. Q lies where the products of rows will be until it is in registers, and the first chunk of
// k_position where V will be. Barriers lie after the last row of the products of keys: the third block has no room for
// anything else.
constexpr int kTileBytes = kTaskRows * kPanelRowBytes;
constexpr int kKeysOffset = 0, kValuesOffset = kTileBytes, kRowChunkOffset = 2 * kTileBytes,
              kKeyChunksOffset = 3 * kTileBytes;
constexpr int kRowProductsOffset = 5 * kTileBytes;
constexpr int kKeyProductsOffset = kRowProductsOffset + kTaskRows * kRowProductsStride * 4;
constexpr int kSharedBytes = kKeyProductsOffset + kTaskRows * kKeyProductsStride * 4;
constexpr int kBarriersOffset = kSharedBytes - 8 * 4;

// Complete when the copies have arrived. The first phase of either kind of chunks brings two, that of `values`
// brings Q.
struct DisentangledBarriers {
  uint64_t keys, values, row_chunks, key_chunks;
};
static_assert(sizeof(DisentangledBarriers) == kSharedBytes - kBarriersOffset);

__device__ inline void initialize(DisentangledBarriers& barriers) {
  barrierInit(&barriers.keys, 1);
  barrierInit(&barriers.values, 1);
  barrierInit(&barriers.row_chunks, 1);
  barrierInit(&barriers.key_chunks, 1);
  fenceBarrierInit();
  fenceAsyncProxy();
}

// The copies that a block asks for: of its 64 query rows, of the keys and values of its steps, and of chunks.
template <typename S>
struct DisentangledLoads {
  const AttentionParams& p;
  const AttentionMaps& maps;
  const PositionMaps& positions;
  DisentangledBarriers& barriers;
  unsigned base;  // of shared memory
  int lane, head;
  bool has_k_position, has_q_position;  // which tables the graph has
  int begin, length, first;             // of the sequence, and the first of the rows in it

  // The first distance of a chunk.
  __device__ int firstDistanceOf(int chunk) const { return chunk * kTaskRows - (kTaskRows - 1) - first; }
  // Whether distances that are needed lie beyond an end of the table, and so have the row at this end.
  __device__ bool isClamped(int chunk) const {
    return max(firstDistanceOf(chunk), 1 - length) < -p.bias_range ||
           min(firstDistanceOf(chunk) + kTaskRows - 1, length - 1) > p.bias_range;
  }
  // The end of the table beyond which all of a chunk lies: 1 or -1, otherwise 0.
  __device__ int endOf(int chunk) const {
    return firstDistanceOf(chunk) >= p.bias_range                    ? 1
           : firstDistanceOf(chunk) + kTaskRows - 1 <= -p.bias_range ? -1
                                                                     : 0;
  }
  // Brings a chunk of a table. Warp-collective.
  __device__ void copyChunk(int table, int chunk, int offset, uint64_t* barrier) const {
    const int first_distance = firstDistanceOf(chunk);
    if (!isClamped(chunk)) {
      if (lane == 0) copyBox(base + offset, positions.chunk[table], 0, head, first_distance + p.bias_range, barrier);
      return;
    }
    for (int i = lane; i < kTaskRows; i += kWarpSize) {
      const int distance = max(min(first_distance + i, p.bias_range), -p.bias_range);
      copyBox(base + offset + i * kPanelRowBytes, positions.row[table], 0, head, distance + p.bias_range, barrier);
    }
  }
  __device__ static int keyChunkOffset(int chunk) { return kKeyChunksOffset + chunk % 2 * kTileBytes; }
  // Brings the first two chunks of a table, if the graph has it, to these addresses.
  __device__ void loadFirstChunks(int table, int at0, int at1, uint64_t* barrier) const {
    const bool has_table = table == 0 ? has_k_position : has_q_position;
    if (lane == 0) barrierExpect(barrier, has_table ? 2 * kTileBytes : 0);
    __syncwarp();
    if (!has_table) return;
    copyChunk(table, 0, at0, barrier);
    copyChunk(table, 1, at1, barrier);
  }
  // Brings a further chunk to where `old_chunk` is, unless both hold nothing but the row at the same end of the table.
  __device__ void loadChunk(int table, int chunk, int old_chunk, int offset, uint64_t* barrier) const {
    const bool is_loaded = isClamped(old_chunk) && endOf(chunk) != 0 && endOf(chunk) == endOf(old_chunk);
    const bool is_needed = (table == 0 ? has_k_position : has_q_position) && !is_loaded;
    if (lane == 0) barrierExpect(barrier, is_needed ? kTileBytes : 0);
    __syncwarp();
    if (is_needed) copyChunk(table, chunk, offset, barrier);
  }
  __device__ void loadKeys(int operand, int step) const {
    if (lane == 0) {
      loadRows<S, kTaskRows>(maps, operand, base + (operand == 1 ? kKeysOffset : kValuesOffset),
                             min(length - step * kTaskRows, kTaskRows), head, begin + step * kTaskRows,
                             operand == 1 ? &barriers.keys : &barriers.values);
    }
  }
  // Brings a step's V, and the chunk that keys need next.
  __device__ void replaceValues(int warp, int step, bool more) const {
    if (warp == 2) loadKeys(2, step);
    if (warp == 3 && more) loadChunk(1, step + 2, step, keyChunkOffset(step), &barriers.key_chunks);
    __syncwarp();
  }
  // Brings the next step's K, and the chunk that rows need then.
  __device__ void replaceKeys(int warp, int step, bool more) const {
    if (warp == 0 && more) loadChunk(0, step + 2, step + 1, kRowChunkOffset, &barriers.row_chunks);
    if (warp == 1 && more) loadKeys(1, step + 1);
    __syncwarp();
  }
  // Brings what the first step needs, one kind per warp.
  __device__ void start(int warp) const {
    if (warp == 0) loadFirstChunks(0, kValuesOffset, kRowChunkOffset, &barriers.row_chunks);
    if (warp == 1) loadKeys(1, 0);
    if (warp == 2 && lane == 0) {
      loadRows<S, kTaskRows>(maps, 0, base + kRowProductsOffset, min(length - first, kTaskRows), head, begin + first,
                             &barriers.values);
    }
    if (warp == 3) loadFirstChunks(1, keyChunkOffset(0), keyChunkOffset(1), &barriers.key_chunks);
    __syncwarp();
  }
};

// A warp's rows of Q, from shared memory.
template <typename S>
__device__ void loadQueries(const DisentangledLoads<S>& loads, int warp, unsigned (&queries)[S::kD / 16][4]) {
  unsigned char* const q = sharedPointer<unsigned char>(loads.base + kRowProductsOffset);
  if (loads.p.q.bias) addBias<S>(loads.p.q, loads.p.D, q, loads.head, 0);
#pragma unroll
  for (int d = 0; d < S::kD / 16; ++d) {
    loadMatrices(queries[d], q + panelOffset(warp * 16 + loads.lane % 16, d * 2 + loads.lane / 16));
  }
}

// products = a warp's rows of Q times 64 rows of shared memory at this address.
template <typename S>
__device__ void multiplyRows(Fragments& products, const unsigned (&queries)[S::kD / 16][4], unsigned address) {
  const unsigned b = panelDescriptor(address);
#pragma unroll
  for (int d = 0; d < S::kD / 16; ++d) {
    wgmmaRegistersAlong<typename S::T>(products, queries[d], b + (d * 32 >> 4), d > 0);
  }
  wgmmaCommit();
}

// products = a step's keys times both chunks.
template <typename S>
__device__ void multiplyKeyChunks(float (&products)[16][4], unsigned base) {
  wgmmaFence();
  multiplyKeys<S>(products, panelDescriptor(base + kKeysOffset), panelDescriptor(base + kKeyChunksOffset));
  wgmmaCommit();
  wgmmaWait<0>();
}

// Weighs the values of a step, and adds them to the output. Rows of V beyond the sequence become zeros.
template <typename S>
__device__ void multiplyStepValues(Sm90Rows<S>& rows, unsigned values, int keys) {
  if (keys < kTaskRows) {
    zeroValues<S>(values, keys * S::kRowChunks + threadIdx.x % kWarpgroup, kTaskRows);
    namedBarrier(kGroupBarrier, kWarpgroup);
  }
  wgmmaFence();
  multiplyValues<S, 0, kTaskRows / 16>(rows.output, rows.weights, panelDescriptor(values), true);
  wgmmaCommit();
}

template <typename S>
__global__ void __launch_bounds__(kWarpgroup, kBlocks)
    attentionSm90DisentangledKernel(const __grid_constant__ AttentionParams p,
                                    const __grid_constant__ AttentionMaps maps,
                                    const __grid_constant__ PositionMaps positions) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const unsigned base = sharedAddress(dynamic);
  DisentangledBarriers& barriers = *sharedPointer<DisentangledBarriers>(base + kBarriersOffset);
  const int thread = threadIdx.x, lane = thread % kWarpSize, warp = uniform(thread / kWarpSize);
  if (thread == 0) initialize(barriers);
  const int number = blockIdx.x / p.H, head = blockIdx.x % p.H;  // blocks that start together read whole rows
  const bool has_k_position = p.k_position, has_q_position = p.q_position;
  __syncthreads();
  if (!p.early_lengths) waitForPriorGrids();
  const QueryTile tile = p.B <= kMaxOrdered ? findLongestQueryTile<kTaskRows>(p.cu_seqlens, p.B, p.T, number)
                                            : findQueryTile<kTaskRows>(p.cu_seqlens, p.B, p.T, number);
  waitForPriorGrids();
  releaseNextGrid();
  if (tile.rows <= 0) return;
  if (tile.filler) return zeroRows(p, head, tile.begin + tile.first, tile.rows);
  const int begin = uniform(tile.begin), length = uniform(tile.length), first = uniform(tile.first);
  const int steps = ceilDiv(static_cast<unsigned>(length), static_cast<unsigned>(kTaskRows));

  const DisentangledLoads<S> loads{p,    maps,           positions,      barriers, base,   lane,
                                   head, has_k_position, has_q_position, begin,    length, first};
  loads.start(warp);

  barrierWait(&barriers.values, 0);
  unsigned queries[S::kD / 16][4];
  loadQueries(loads, warp, queries);
  __syncthreads();  // the products of rows overwrite Q

  const Lane fragment_lane;
  const unsigned row_products = base + kRowProductsOffset, key_products = base + kKeyProductsOffset;
  const float scale_log2 = p.scale * kLog2E;
  Sm90Rows<S> rows;
  rows.clearOutput();
  Fragments row_fragments;  // products with a chunk of k_position, the first of which is in V's place
  barrierWait(&barriers.row_chunks, 0);
  wgmmaFence();
  multiplyRows<S>(row_fragments, queries, base + kValuesOffset);
  wgmmaWait<0>();
  dispatchWarp(warp,
               [&](auto number) { storeRowProducts<number.value, true>(row_fragments, row_products, fragment_lane); });
  for (int step = 0; step < steps; ++step) {
    const int keys = length - step * kTaskRows;
    barrierWait(&barriers.keys, step & 1);
    if (p.k.bias) addBias<S>(p.k, p.D, sharedPointer<unsigned char>(base + kKeysOffset), head, 0);
    barrierWait(&barriers.key_chunks, step & 1);
    float key_fragments[16][4];  // of keys with both chunks
    multiplyKeyChunks<S>(key_fragments, base);
    namedBarrier(kGroupBarrier, kWarpgroup);  // nobody reads V, the near chunk and the products of keys any more
    const bool more = step + 1 < steps;
    loads.replaceValues(warp, step, more);
    dispatchWarp(warp, [&](auto number) {
      storeKeyProducts<number.value>(key_fragments, key_products, step % 2, fragment_lane);
    });
    if (step > 0) barrierWait(&barriers.row_chunks, step & 1);
    wgmmaFence();
    multiplyRows<S>(row_fragments, queries, base + kRowChunkOffset);
    multiplyRows<S>(rows.scores, queries, base + kKeysOffset);
    wgmmaWait<1>();
    dispatchWarp(
        warp, [&](auto number) { storeRowProducts<number.value, false>(row_fragments, row_products, fragment_lane); });
    wgmmaWait<0>();
    namedBarrier(kGroupBarrier, kWarpgroup);  // the products are complete, and nobody reads K and chunks any more
    loads.replaceKeys(warp, step, more);
    dispatchWarp(warp, [&](auto number) {
      addProducts<number.value>(rows.scores, row_products, key_products, has_k_position, has_q_position, fragment_lane);
      __syncwarp();
      storeRowProducts<number.value, true>(row_fragments, row_products, fragment_lane);
    });
    if (keys < kTaskRows) rows.template maskFrom<kTaskRows>(keys, lane);
    rows.template computeWeights<kTaskRows>(scale_log2, step == 0);
    barrierWait(&barriers.values, ~step & 1);
    multiplyStepValues(rows, base + kValuesOffset, keys);
  }
  wgmmaWait<0>();
  rows.addUpSums();
  storeRows<S>(p, AttentionWorkItem{begin + first, length - first, head}, rows);
#endif
}

bool encodeTable(const AttentionParams& params, const void* table, unsigned rows, CUtensorMap& map) {
  if (!table) return true;
  const auto size = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const int64_t head_bytes = params.D * sizeOf(params.type);
  return encodeBoxes<3>(
      map, elementOf(params.type), table, {size(params.D), size(params.H), size(2 * int64_t{params.bias_range} + 1)},
      {size(head_bytes), size(params.H * head_bytes)}, {kPanelColumns, 1, rows}, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

template <typename T>
cudaError_t launchDisentangled(const AttentionParams& params, cudaStream_t stream) {
  AttentionMaps maps;
  PositionMaps positions{};
  if (!encodeMaps<DisentangledShape<T>>(params, kTaskRows, maps)) return mapError();
  const void* const tables[] = {params.k_position, params.q_position};
  for (int i = 0; i < 2; ++i) {
    if (!encodeTable(params, tables[i], kTaskRows, positions.chunk[i]) ||
        !encodeTable(params, tables[i], 1, positions.row[i])) {
      return cudaErrorInvalidValue;
    }
  }
  const auto kernel = attentionSm90DisentangledKernel<DisentangledShape<T>>;
  const unsigned blocks = countQueryTiles(params.T, params.B, kTaskRows) * static_cast<unsigned>(params.H);
  return launchWithSharedMemory(kernel, blocks, kWarpgroup, kSharedBytes, stream, params, maps, positions);
}

}  // namespace

cudaError_t launchAttentionSm90Disentangled(const AttentionParams& params, cudaStream_t stream) {
  return params.type == DataType::kFloat16 ? launchDisentangled<half>(params, stream)
                                           : launchDisentangled<__nv_bfloat16>(params, stream);
}

}  // namespace padfree
