// SPDX-License-Identifier: Apache-2.0
// Moves rows by an index: what PadfreePack and PadfreeUnpack share.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"

namespace padfree {

constexpr int kRowCopyThreads = 256;
constexpr int kRowCopyWarps = kRowCopyThreads / kWarpSize;
constexpr int kRowCopyLoads = 4;                          // words that a lane has in flight
constexpr int kRowCopyWords = kRowCopyLoads * kWarpSize;  // narrow rows share a warp up to this many words

// One warp moves `warp_rows` rows (at most 32) of `words` words each. sources(row) is warp-collective and gives lane i
// the row of x that becomes row `row + i` of y, or -1 for zeros.
template <typename Word, typename Sources>
__global__ void __launch_bounds__(kRowCopyThreads)
    rowCopyKernel(const Word* x, Word* y, int64_t rows, unsigned words, int warp_rows, Sources sources) {
  waitForPriorGrids();
  releaseNextGrid();
  const unsigned lane = threadIdx.x % kWarpSize;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRowCopyWarps * warp_rows;
  for (int64_t row = (static_cast<int64_t>(blockIdx.x) * kRowCopyWarps + threadIdx.x / kWarpSize) * warp_rows;
       row < rows; row += stride) {
    const int64_t source = sources(row);
    const unsigned total = words * static_cast<unsigned>(min(static_cast<int64_t>(warp_rows), rows - row));
    for (unsigned first = 0; first < total; first += kRowCopyLoads * kWarpSize) {
      Word word[kRowCopyLoads];
#pragma unroll
      for (int i = 0; i < kRowCopyLoads; ++i) {
        const unsigned at = first + i * kWarpSize + lane;
        const int64_t from = __shfl_sync(kFullMask, source, at / words);
        word[i] = at < total && from >= 0 ? x[from * words + at % words] : Word{};
      }
#pragma unroll
      for (int i = 0; i < kRowCopyLoads; ++i) {
        const unsigned at = first + i * kWarpSize + lane;
        if (at < total) y[row * words + at] = word[i];
      }
    }
  }
}

template <typename Sources>
cudaError_t launchRowCopy(const void* x, void* y, int64_t rows, int64_t row_bytes, Sources sources,
                          cudaStream_t stream) {
  if (rows <= 0 || row_bytes <= 0) return cudaSuccess;
  const auto launch = [&](auto tag) {
    using Word = typename decltype(tag)::Type;
    const int64_t words = row_bytes / static_cast<int64_t>(sizeof(Word));
    if (words > INT32_MAX) return cudaErrorInvalidValue;
    const int64_t fitting = kRowCopyWords / words;
    const int warp_rows = static_cast<int>(fitting < 1 ? 1 : fitting < kWarpSize ? fitting : kWarpSize);
    const unsigned blocks = gridSize(ceilDiv<int64_t>(rows, kRowCopyWarps * warp_rows));
    return launchDependent(rowCopyKernel<Word, Sources>, blocks, kRowCopyThreads, 0, stream,
                           static_cast<const Word*>(x), static_cast<Word*>(y), rows, static_cast<unsigned>(words),
                           warp_rows, sources);
  };
  if (isAligned(row_bytes, 16)) return launch(TypeTag<uint4>{});
  if (isAligned(row_bytes, 4)) return launch(TypeTag<unsigned>{});
  if (isAligned(row_bytes, 2)) return launch(TypeTag<unsigned short>{});
  return cudaErrorInvalidValue;
}

}  // namespace padfree
