// SPDX-License-Identifier: Apache-2.0
// Embedding and layer norm of widths that fill a warp's 16-byte vectors: E = 32 * kVectors * elements in 16 bytes.
#pragma once

#include "common/mma_add.cuh"
#include "embedding/scheduled_source.cuh"
#include "embedding/table_source.cuh"

namespace padfree {

// Stores a vector of a row: zeros for filler.
template <typename T, bool kE4m3, int kWidth>
__device__ inline void storeVector(const EmbeddingRows& p, const E4m3Rows& e4m3, int64_t index, T* y, bool filler,
                                   const float (&x)[kWidth]) {
  if (filler) {
    if (!kE4m3 || p.y) *reinterpret_cast<uint4*>(y) = uint4{};
    if constexpr (kE4m3) *reinterpret_cast<uint2*>(e4m3.data + index) = uint2{};
  } else {
    if (!kE4m3 || p.y) storeFloats(y, x);
    if constexpr (kE4m3) storeRow<T>(e4m3, index, x);
  }
}

// One warp per token. It is bound by instruction issue (some 700 per row in rowNormVectorKernel), so the tensor cores
// convert and add. The word row is on its way before the token's sequence is searched for, which takes as long.
template <typename T, int kVectors, bool kE4m3, typename Source>
__global__ void __launch_bounds__(kRowNormThreads, highOccupancyBlocks(kVectors))
    warpEmbeddingKernel(Source source, E4m3Rows e4m3) {
  if constexpr (kE4m3 && !hasE4m3()) return;
  constexpr int kWidth = kVectorBytes / sizeof(T), kStride = kWarpSize * kWidth, kE = kVectors * kStride;
  constexpr bool kSchedules = Source::kHasBlocksAhead;
  if constexpr (kSchedules) {
    if (blockIdx.x < source.blocksAhead()) return source.runBlockAhead(e4m3);
  }
  const unsigned block = blockIdx.x - source.blocksAhead();
  const EmbeddingRows& p = source.p;
  if (block == 0) prefetchNorm(source, p.gamma, p.beta, kE * sizeof(T));
  if (!source.readsEarly()) waitForPriorGrids();
  const int lane = threadIdx.x % kWarpSize;
  const int token = block * (kRowNormThreads / kWarpSize) + threadIdx.x / kWarpSize;
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

  int position;
  bool filler;
  if constexpr (kSchedules) {
    const auto token_position = source.template positionOf<kWarpSize>(token);
    position = token_position.in_sequence + p.position_offset;
    filler = token_position.filler;
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
  releaseNextGrid();

  const unsigned identity = identityFragment<T>();
  float x[kVectors][kWidth] = {}, total = 0.f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    accumulate<T>(words[i], identity, x[i]);
    accumulate<T>(positions[i], identity, x[i]);
    accumulate<T>(types[i], identity, x[i]);
    addTo(total, x[i]);
  }
  const float squares = centreRow<kWarpSize>(x, total, false, 1.f / kE, [](int) { return true; });
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
    const int64_t index = static_cast<int64_t>(token) * kE + lane * kWidth + i * kStride;
    storeVector<T, kE4m3>(p, e4m3, index, y + i * kStride, filler, x[i]);
  }
}

// Launches the kernel with one warp per token, if there is one for rows of this width; `launched` says so.
template <typename Source, typename Norm>
cudaError_t launchWarps(const Source& source, const Norm& norm, cudaStream_t stream, bool& has_kernel) {
  using T = typename Norm::Element;
  has_kernel = true;
  const auto launch = [&](auto kernel) {
    E4m3Rows e4m3{};
    if constexpr (Norm::kE4m3) {
      e4m3 = norm.other;
      const cudaError_t status = checkE4m3Code(reinterpret_cast<const void*>(kernel));
      if (status != cudaSuccess) return status;
    }
    const unsigned blocks = ceilDiv(source.p.T, kRowNormThreads / kWarpSize) + source.blocksAhead();
    return launchDependent(kernel, blocks, kRowNormThreads, 0, stream, source, e4m3);
  };
  if (norm.E == widthOf<T>(kWarpSize, 3)) return launch(warpEmbeddingKernel<T, 3, Norm::kE4m3, Source>);
  if (norm.E == widthOf<T>(kWarpSize, 4)) return launch(warpEmbeddingKernel<T, 4, Norm::kE4m3, Source>);
  has_kernel = false;
  return cudaSuccess;
}

// Rows of tables, where offsets exist already or are computed by the kernel ahead.
template <typename Norm>
cudaError_t launchTableRows(const EmbeddingRows& rows, const Norm& norm, cudaStream_t stream) {
  if (rows.T <= 0) return cudaSuccess;
  const TableSource<typename Norm::Element> source(rows);
  bool has_kernel;
  const cudaError_t status = launchWarps(source, norm, stream, has_kernel);
  return has_kernel ? status : launchRowNorm(source, norm, stream);
}

// Rows beside their schedule, for the widths that most encoders have; `launched` says whether they were.
template <typename Norm>
cudaError_t launchBesideSchedule(const EmbeddingParams& params, const Norm& norm, cudaStream_t stream,
                                 bool& has_kernel) {
  using T = typename Norm::Element;
  has_kernel = false;
  if constexpr (sizeof(T) == sizeof(half)) {
    if (params.T <= 0 || params.B > kWarpSize || params.positions) return cudaSuccess;
    ScheduleParams schedule = params.schedule;
    const cudaError_t status = prepareSchedule(schedule);
    if (status != cudaSuccess) return status;
    const ScheduledSource<T> source(params, schedule);
    if (params.E != widthOf<T>(16, 3)) return launchWarps(source, norm, stream, has_kernel);
    has_kernel = true;
    const unsigned blocks = ceilDiv(params.T, kRowNormThreads / 16) + source.blocksAhead();
    return launchRowNormKernel(rowNormVectorKernel<16, 3, true, ScheduledSource<T>, Norm>, blocks, kRowNormThreads,
                               source, norm, stream);
  }
  return cudaSuccess;
}

// Rows, and the schedule where it is asked for: beside them, or by a kernel ahead.
template <typename Norm>
cudaError_t launchRows(const EmbeddingParams& params, const Norm& norm, cudaStream_t stream) {
  if (!params.schedule.cu_seqlens) return launchTableRows(params, norm, stream);
  bool has_kernel;
  cudaError_t status = launchBesideSchedule(params, norm, stream, has_kernel);
  if (has_kernel || status != cudaSuccess) return status;
  status = launchSchedule(params.schedule, stream);
  EmbeddingRows rows = params;
  rows.cu_seqlens = params.schedule.cu_seqlens;
  rows.early_ids = true;  // the kernel ahead is the schedule
  return status == cudaSuccess ? launchTableRows(rows, norm, stream) : status;
}

}  // namespace padfree
