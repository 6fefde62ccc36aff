// SPDX-License-Identifier: Apache-2.0
// Attention with a disentangled bias (DeBERTa) on tensor cores for sm_80 and newer, as mma_kernel.cuh but for its
// scores: s(i, j) = scale * (q_i . k_j + q_i . k_position[j - i] + k_j . q_position[j - i]).
//
// 64 rows and 64 keys meet at 127 distances, the band of rows that they need of either table. The next 64 keys need the
// band 64 distances further on: so a step loads as many rows of a table as it loads keys, over those that it no longer
// needs. K and the bands arrive during the previous step's softmax, V while this step's scores are computed, so that
// one buffer for each is enough.
#include "attention/kernels.h"
#include "attention/mma_positions.cuh"
#include "attention/mma_rows.cuh"
#include "attention/query_tiles.cuh"
#include "attention/row_copier.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kWarpRows = 16;
constexpr int kRows = kWarps * kWarpRows;
static_assert(kRows >= kTaskRows, "attentionBlocks counts on it");

// kBlocks: blocks per multiprocessor, which bound the registers.
template <int kHeadSize_, int kKeys_, int kBlocks_>
struct Shape {
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kBand = kRows + kKeys;
  static constexpr int kStride = kHeadSize + kRowPad;
  static constexpr int kSharedRows = kRows + 2 * kKeys + 2 * kBand;  // of Q, K, V and the bands
};

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(kThreads, S::kBlocks) attentionDisentangledKernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const q = reinterpret_cast<T*>(shared_bytes);
  T* const k = q + kRows * S::kStride;
  T* const v = k + S::kKeys * S::kStride;
  T* const k_band = v + S::kKeys * S::kStride;
  T* const q_band = k_band + S::kBand * S::kStride;

  waitForPriorGrids();
  releaseNextGrid();
  const int head = blockIdx.x % p.H;  // blocks that start together read whole rows of one sequence
  const QueryTile tile = findQueryTile<kRows>(p.cu_seqlens, p.B, p.T, blockIdx.x / p.H);
  if (tile.rows <= 0) return;
  const int64_t stride = static_cast<int64_t>(p.H) * p.D;  // of y and of the tables
  Result* const y = static_cast<Result*>(p.y) + (tile.begin + tile.first) * stride + head * p.D;
  if (tile.filler) return zeroRows<kThreads>(y, stride, p.D, tile.rows);

  const RowCopier<T, S::kHeadSize, kThreads> copier(head, p.D);
  const int max_distance = min(p.bias_range, tile.length - 1);  // the farthest whose row of a table is read
  const T* const k_middle = static_cast<const T*>(p.k_position) + p.bias_range * stride;
  const T* const q_middle = static_cast<const T*>(p.q_position) + p.bias_range * stride;
  // Row x of a band belongs to distance x - (tile.first + kRows - 1).
  const auto loadBandRows = [&](int first) {
    const int distance = first - (tile.first + kRows - 1), row = first % S::kBand * S::kStride;
    if (p.k_position) copier.template copyDistances<S::kKeys>(k_band + row, k_middle, stride, distance, max_distance);
    if (p.q_position) copier.template copyDistances<S::kKeys>(q_band + row, q_middle, stride, distance, max_distance);
  };
  const auto loadKeys = [&](int first) {
    if (first < tile.length) copier.template copy<S::kKeys>(k, p.k, tile.begin + first, tile.length - first);
  };
  copier.template copy<kRows>(q, p.q, tile.begin + tile.first, tile.rows);
  loadKeys(0);
#pragma unroll
  for (int i = 0; i < S::kBand; i += S::kKeys) loadBandRows(i);
  commitCopies();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * kWarpRows;
  const bool has_rows = warp_row < tile.rows;  // a warp without rows only helps to copy
  const T *const q_bias = biasOf<T>(p.q, head), *const k_bias = biasOf<T>(p.k, head);
  const float scale_log2 = p.scale * kLog2E;
  const PositionScores<T, S::kHeadSize, S::kKeys, S::kStride, S::kBand> positions;
  using Rows = WarpRows<T, S::kHeadSize, 1, S::kKeys, S::kStride, PlainScores>;
  Rows rows;
  typename Rows::Scores scores;
  for (int first = 0; first < tile.length; first += S::kKeys) {
    const int keys = tile.length - first;
    waitCopies<0>();
    if (k_bias) copier.template add<S::kKeys>(k, k_bias);
    __syncthreads();  // K and the bands have arrived, every warp is done with V
    copier.template copy<S::kKeys>(v, p.v, tile.begin + first, keys);
    commitCopies();
    if (has_rows) {
      if (first == 0) rows.begin(q + warp_row * S::kStride, q_bias, p.D);
      const int band_row = first + kRows - kWarpRows - warp_row;
      const T *const ks = p.k_position ? k_band : nullptr, *const qs = p.q_position ? q_band : nullptr;
      if (keys < S::kKeys) {
        positions.template multiply<true>(scores[0], rows, k, ks, qs, band_row, keys);
      } else {
        positions.template multiply<false>(scores[0], rows, k, ks, qs, band_row, keys);
      }
    }
    waitCopies<0>();
    __syncthreads();  // V has arrived, every warp is done with K and the band's first kKeys rows
    if (keys > S::kKeys) {
      loadKeys(first + S::kKeys);
      loadBandRows(first + S::kBand);
    }
    commitCopies();
    if (has_rows) {
      if (keys < S::kKeys) {
        rows.template consumeScores<true>(scores, v, keys, scale_log2);
      } else {
        rows.template consumeScores<false>(scores, v, keys, scale_log2);
      }
    }
  }
  if (!has_rows) return;
  rows.storeOutput(y + warp_row * stride, stride, tile.rows - warp_row, biasOf<T>(p.v, head), p.D, p.e4m3_factor);
}

template <typename T, class S>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  constexpr int kBytes = S::kSharedRows * S::kStride * static_cast<int>(sizeof(T));
  static_assert(kBytes <= 99 * 1024, "sm_86, sm_89 and sm_120 give a block 99 KB");
  const auto kernel = params.e4m3_factor > 0.f ? attentionDisentangledKernel<T, S, E4m3>  //
                                               : attentionDisentangledKernel<T, S, T>;
  const unsigned blocks = countQueryTiles(params.T, params.B, kRows) * params.H;
  return launchWithSharedMemory(kernel, blocks, kThreads, kBytes, stream, params);
}

template <typename T>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  if constexpr (!kHopperAlone) {  // which has a kernel of its own for these heads
    if (params.D <= 64) return launch<T, Shape<64, 64, 3>>(params, stream);
  }
  return launch<T, Shape<128, 32, 2>>(params, stream);
}

}  // namespace

cudaError_t launchAttentionDisentangled(const AttentionParams& params, cudaStream_t stream) {
  if (!isAligned16(params.k_position) || !isAligned16(params.q_position)) return cudaErrorMisalignedAddress;
  return params.type == DataType::kFloat16 ? chooseShape<half>(params, stream)
                                           : chooseShape<__nv_bfloat16>(params, stream);
}

}  // namespace padfree
