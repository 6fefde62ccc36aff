// SPDX-License-Identifier: Apache-2.0
// Embedding and layer norm of widths that fill a warp's 16-byte vectors: E = 32 * kVectors * elements in 16 bytes.
#pragma once

#include "common/mma_add.cuh"
#include "embedding/table_source.cuh"

namespace padfree {

// A warp a token. Instructions are what bounds it (some 700 a row in rowNormVectorKernel): so the tensor cores convert
// and add. The word row is on its way before the token's sequence is searched for, which takes as long.
template <typename T, int kVectors, bool kE4m3>
__global__ void __launch_bounds__(kRowNormThreads, crowdedBlocks(kVectors))
    warpEmbeddingKernel(TableSource<T> source, E4m3Rows e4m3) {
  if constexpr (kE4m3 && !hasE4m3()) return;
  constexpr int kWidth = kVectorBytes / sizeof(T), kStride = kWarpSize * kWidth, kE = kVectors * kStride;
  const EmbeddingRows& p = source.p;
  if (blockIdx.x == 0) {
    prefetchToL2(p.gamma, kE * sizeof(T));
    prefetchToL2(p.beta, kE * sizeof(T));
    source.prefetch();
  }
  if (!p.early_ids) waitForPriorGrids();
  const int lane = threadIdx.x % kWarpSize;
  const int token = blockIdx.x * (kRowNormThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (token >= p.T) return;
  const int word = p.ids[token], later_word = source.laterWord(token);
  const int type = p.token_types ? p.token_types[token] : -1;
  const auto load = [&](const void* table, int rows, int id, uint4(&to)[kVectors]) {
    const bool inside = static_cast<unsigned>(id) < static_cast<unsigned>(rows);
    const T* from = static_cast<const T*>(table) + static_cast<int64_t>(id) * kE + lane * kWidth;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) to[i] = inside ? *reinterpret_cast<const uint4*>(from + i * kStride) : uint4{};
  };
  uint4 words[kVectors], positions[kVectors], types[kVectors], gamma[kVectors], beta[kVectors];
  load(p.word_table, p.V, word, words);

  const bool all_early = source.readsAllEarly();
  int position;
  bool filler;
  if (all_early) {
    const auto place = source.placeEarly(token);
    position = place.in_sequence + p.position_offset;
    filler = place.filler;
  } else {
    waitForPriorGrids();
    const auto start = [&](int i) { return sequenceStart(p.cu_seqlens, i, p.T); };
    const int sequence = warpFindLast(p.B, token, start);  // without the filler: one round up to 32 sequences
    position = p.positions ? p.positions[token] : token - start(sequence) + p.position_offset;
    filler = token >= start(p.B);
  }
  source.prefetchWord(later_word, lane, kWarpSize);
  load(p.position_table, p.P, position, positions);
  load(p.type_table, p.N, type, types);
  if (!all_early) releaseNextGrid();

  const unsigned identity = identityFragment<T>();
  float x[kVectors][kWidth] = {}, total = 0.f, squares = 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    accumulate<T>(words[i], identity, x[i]);
    accumulate<T>(positions[i], identity, x[i]);
    accumulate<T>(types[i], identity, x[i]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total += x[i][j];
  }
  const float mean = warpSum(total) * (1.f / kE);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      x[i][j] -= mean;
      squares += x[i][j] * x[i][j];
    }
  }
  load(p.gamma, 1, 0, gamma);
  load(p.beta, p.beta ? 1 : 0, 0, beta);
  const float inverse = rsqrtf(warpSum(squares) * (1.f / kE) + p.epsilon);
  T* y = static_cast<T*>(p.y) + static_cast<int64_t>(token) * kE + lane * kWidth;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float scale[kWidth] = {}, shift[kWidth] = {};
    accumulate<T>(gamma[i], identity, scale);
    accumulate<T>(beta[i], identity, shift);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x[i][j] = x[i][j] * inverse * scale[j] + shift[j];
    [[maybe_unused]] const int64_t at = static_cast<int64_t>(token) * kE + lane * kWidth + i * kStride;
    if (filler) {
      if (!kE4m3 || p.y) *reinterpret_cast<uint4*>(y + i * kStride) = uint4{};
      if constexpr (kE4m3) *reinterpret_cast<uint2*>(e4m3.data + at) = uint2{};
    } else {
      if (!kE4m3 || p.y) storeFloats(y + i * kStride, x[i]);
      if constexpr (kE4m3) storeRow<T>(e4m3, at, x[i]);
    }
  }
  if (all_early) {
    waitForPriorGrids();
    releaseNextGrid();
  }
}

// Launches the kernel for rows of this width.
template <typename Norm>
cudaError_t launchTableRows(const EmbeddingParams& params, const Norm& norm, cudaStream_t stream) {
  using T = typename Norm::Element;
  const TableSource<T> source(params);
  if (params.T <= 0) return cudaSuccess;
  constexpr int kWarpWidth = kWarpSize * kVectorBytes / sizeof(T);
  const auto launchWarps = [&](auto kernel) {
    E4m3Rows e4m3{};
    if constexpr (Norm::kE4m3) {
      e4m3 = norm.other;
      const cudaError_t status = checkE4m3Code(reinterpret_cast<const void*>(kernel));
      if (status != cudaSuccess) return status;
    }
    const int blocks = ceilDiv(params.T, kRowNormThreads / kWarpSize);
    return launchDependent(kernel, blocks, kRowNormThreads, 0, stream, source, e4m3);
  };
  if (params.E == 3 * kWarpWidth) return launchWarps(warpEmbeddingKernel<T, 3, Norm::kE4m3>);
  if (params.E == 4 * kWarpWidth) return launchWarps(warpEmbeddingKernel<T, 4, Norm::kE4m3>);
  return launchRowNorm(source, norm, stream);
}

}  // namespace padfree
