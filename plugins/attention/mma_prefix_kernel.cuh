// SPDX-License-Identifier: Apache-2.0
// Causal attention of sequences that continue another one of their batch, on tensor cores for sm_80 and newer: the
// kernel of mma_kernel.cuh, whose keys are two runs of tokens. Steps do not cross from one to the other: the last step
// of the prefix is masked like that of a sequence.
#pragma once

#include "attention/kernels.h"
#include "attention/mma_rows.cuh"
#include "attention/prefix.cuh"
#include "attention/query_tiles.cuh"
#include "attention/row_copier.cuh"
#include "common/dependent_launch.cuh"

namespace padfree {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kStages = 2;

// What rows see, where nothing is added to scores: these stay as they are until the exponentials.
class CausalScores {
 public:
  __device__ CausalScores(const AttentionParams& p, int)
      : scale_log2_(p.scale * kLog2E), left_(p.window_left < 0 ? 0x7fffffff : p.window_left) {}

  // As PositionedScores has them.
  __device__ bool seesAny(int first_row, int last_row, int first_key, int keys) const {
    return first_key <= last_row && first_row - (first_key + keys - 1) <= left_;
  }
  template <int kFragments, int kKeyBlocks>
  __device__ void adjust(float (&scores)[kFragments][kKeyBlocks][4], int first_row, int first_key) const {
    if (first_key + kKeyBlocks * 8 - 1 <= first_row && first_row + kFragments * 16 - 1 - first_key <= left_) return;
    const int lane = threadIdx.x % kWarpSize, distance = first_key + lane % 4 * 2 - (first_row + lane / 4);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int away = distance + n * 8 + i % 2 - i / 2 * 8 - f * 16;
          if (away > 0 || -away > left_) scores[f][n][i] = -INFINITY;
        }
      }
    }
  }
  __device__ float factor() const { return scale_log2_; }

 private:
  const float scale_log2_;
  const int left_;
};

// kBlocks: blocks per multiprocessor, which bound the registers. kHeads: heads of Q that a block takes together, as
// they read the same keys. It has the same rows of each, so that fewer of its rows lie beyond the sequence.
template <int kHeadSize_, int kKeys_, int kBlocks_, int kHeads_, class Adjust_>
struct Shape {
  using Adjust = Adjust_;
  static constexpr int kHeads = kHeads_;
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kWarpRows = 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kTileRows = kRows / kHeads;
  static constexpr int kStride = kHeadSize + kRowPad;
  static constexpr int kStageElements = 2 * kKeys * kStride;  // K, then V
  static constexpr int kSharedElements = kStages * kStageElements + kRows * kStride;
};

// The keys of one step: `keys` of them from number `first` of prefix and sequence together, which is `token`.
struct KeyStep {
  int first, keys, token;
};

// The steps over the keys that some rows see: first those of the prefix, then the sequence's own.
template <int kKeys>
class KeySteps {
 public:
  __device__ KeySteps(const KeyRange& range, const Prefix& prefix, int begin)
      : prefix_first_(range.begin),
        prefix_end_(min(range.end, prefix.length)),
        own_first_(max(range.begin, prefix.length)),
        own_end_(range.end),
        prefix_token_(prefix.begin),
        own_token_(begin - prefix.length),
        prefix_steps_(ceilDiv(max(prefix_end_ - prefix_first_, 0), kKeys)),
        steps_(prefix_steps_ + ceilDiv(max(own_end_ - own_first_, 0), kKeys)) {}

  __device__ int count() const { return steps_; }

  __device__ KeyStep step(int number) const {
    const bool in_prefix = number < prefix_steps_;
    const int first = in_prefix ? prefix_first_ + number * kKeys : own_first_ + (number - prefix_steps_) * kKeys;
    return {first, min(kKeys, (in_prefix ? prefix_end_ : own_end_) - first),
            first + (in_prefix ? prefix_token_ : own_token_)};
  }

 private:
  const int prefix_first_, prefix_end_, own_first_, own_end_;
  const int prefix_token_, own_token_;  // the tokens of what would be key 0
  const int prefix_steps_, steps_;
};

template <typename T, class S, typename Result>
__global__ void __launch_bounds__(kThreads, S::kBlocks) attentionMmaPrefixKernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared_kv = reinterpret_cast<T*>(shared_bytes);
  T* const shared_q = shared_kv + kStages * S::kStageElements;

  if (!p.early_lengths) waitForPriorGrids();
  const int units = p.H / S::kHeads;
  const int first_head = blockIdx.x % units * S::kHeads;  // blocks that start together read whole rows of one sequence
  const QueryTile tile = findQueryTile<S::kTileRows>(p.cu_seqlens, p.B, p.T, blockIdx.x / units);
  waitForPriorGrids();
  releaseNextGrid();
  if (tile.rows <= 0) return;
  const int64_t y_stride = static_cast<int64_t>(p.H) * p.D;
  Result* const y = static_cast<Result*>(p.y) + (tile.begin + tile.first) * y_stride + first_head * p.D;
  if (tile.filler) return zeroRows<kThreads>(y, y_stride, S::kHeads * p.D, tile.rows);

  const Prefix prefix = prefixOf(p.prefix, p.cu_seqlens, p.B, p.T, tile.sequence);
  const int first = prefix.length + tile.first;
  const KeyRange range = visibleKeys(p, first, first + tile.rows - 1, prefix.length + tile.length);
  const KeySteps<S::kKeys> steps(range, prefix, tile.begin);
  const int kv_head = first_head / (p.H / p.kv_heads);
  const RowCopier<T, S::kHeadSize, kThreads> kv_copier(kv_head, p.D);
  const auto load = [&](T* stage, int number) {
    if (number < steps.count()) {
      const KeyStep step = steps.step(number);
      kv_copier.template copy<S::kKeys>(stage, p.k, step.token, step.keys);
      kv_copier.template copy<S::kKeys>(stage + S::kKeys * S::kStride, p.v, step.token, step.keys);
    }
    commitCopies();  // an empty group if nothing is left: waitCopies counts groups
  };
#pragma unroll
  for (int i = 0; i < S::kHeads; ++i) {
    const RowCopier<T, S::kHeadSize, kThreads> copier(first_head + i, p.D);
    copier.template copy<S::kTileRows>(shared_q + i * S::kTileRows * S::kStride, p.q, tile.begin + tile.first,
                                       tile.rows);
  }
#pragma unroll
  for (int i = 0; i < kStages; ++i) load(shared_kv + i * S::kStageElements, i);

  const int warp = threadIdx.x / kWarpSize, own_head = warp / (kWarps / S::kHeads), head = first_head + own_head;
  const int warp_row = warp % (kWarps / S::kHeads) * S::kWarpRows;
  const bool has_rows = warp_row < tile.rows;  // a warp without rows only helps to copy
  const int first_row = first + warp_row;
  const typename S::Adjust adjust(p, head);
  WarpRows<T, S::kHeadSize, 1, S::kKeys, S::kStride, typename S::Adjust> rows;
  for (int number = 0; number < steps.count(); ++number) {
    T* const k = shared_kv + number % kStages * S::kStageElements;
    const T* const v = k + S::kKeys * S::kStride;
    waitCopies<kStages - 1>();
    __syncthreads();
    if (has_rows) {
      if (number == 0) rows.begin(shared_q + warp * S::kWarpRows * S::kStride, biasOf<T>(p.q, head), p.D);
      const KeyStep step = steps.step(number);
      if (!adjust.seesAny(first_row, first_row + S::kWarpRows - 1, step.first, step.keys)) {
        // None of this warp's rows does, though one of the tile's may.
      } else if (step.keys < S::kKeys) {
        rows.template step<true>(k, v, step.keys, adjust, first_row, step.first);
      } else {
        rows.template step<false>(k, v, step.keys, adjust, first_row, step.first);
      }
    }
    __syncthreads();  // every warp is done with this stage
    load(k, number + kStages);
  }
  if (!has_rows) return;
  rows.storeOutput(y + warp_row * y_stride + own_head * p.D, y_stride, tile.rows - warp_row, biasOf<T>(p.v, kv_head),
                   p.D, p.e4m3_factor);
}

template <typename T, class S>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  static_assert(S::kRows >= kTaskRows, "attentionBlocks counts on it");
  constexpr int kBytes = S::kSharedElements * static_cast<int>(sizeof(T));
  static_assert(kBytes <= 99 * 1024, "sm_86, sm_89 and sm_120 give a block 99 KB");
  const auto kernel =
      params.e4m3_factor > 0.f ? attentionMmaPrefixKernel<T, S, E4m3> : attentionMmaPrefixKernel<T, S, T>;
  const unsigned blocks = countQueryTiles(params.T, params.B, S::kTileRows) * (params.H / S::kHeads);
  return launchWithSharedMemory(kernel, blocks, kThreads, kBytes, stream, params);
}

template <typename T, int kHeads>
cudaError_t chooseShape(const AttentionParams& params, cudaStream_t stream) {
  if (params.D <= 64) return launch<T, Shape<64, 64, 3, kHeads, CausalScores>>(params, stream);
  if (params.D <= 128) return launch<T, Shape<128, 32, 3, kHeads, CausalScores>>(params, stream);
  return launch<T, Shape<256, 32, 1, kHeads, CausalScores>>(params, stream);
}

}  // namespace

template <typename T>
cudaError_t launchMmaPrefix(const AttentionParams& params, cudaStream_t stream) {
  if (params.bias != AttentionBias::kNone) {
    if (params.D <= 64) return launch<T, Shape<64, 64, 3, 1, PositionedScores>>(params, stream);
    if (params.D <= 128) return launch<T, Shape<128, 32, 2, 1, PositionedScores>>(params, stream);
    return launch<T, Shape<256, 32, 1, 1, PositionedScores>>(params, stream);
  }
  return params.H / params.kv_heads % 2 == 0 ? chooseShape<T, 2>(params, stream) : chooseShape<T, 1>(params, stream);
}

}  // namespace padfree
