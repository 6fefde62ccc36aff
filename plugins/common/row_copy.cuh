// SPDX-License-Identifier: Apache-2.0
// Moves rows by an index: what PadfreePack and PadfreeUnpack share.
#pragma once

#include "common/device.cuh"
#include "common/launch.h"

namespace padfree {

constexpr int kRowCopyThreads = 256;
constexpr int kRowCopyWarps = kRowCopyThreads / kWarpSize;

// One warp a row of `words` words. sourceRow(row) is warp-collective and gives the row of x to copy, or -1 for zeros.
template <typename Word, typename SourceRow>
__global__ void __launch_bounds__(kRowCopyThreads)
    rowCopyKernel(const Word* x, Word* y, int64_t rows, int64_t words, SourceRow sourceRow) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRowCopyWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowCopyWarps + threadIdx.x / kWarpSize; row < rows;
       row += stride) {
    const int64_t source = sourceRow(row);
    if (source < 0) {
      for (int64_t i = lane; i < words; i += kWarpSize) y[row * words + i] = Word{};
    } else {
#pragma unroll 4
      for (int64_t i = lane; i < words; i += kWarpSize) y[row * words + i] = x[source * words + i];
    }
  }
}

template <typename SourceRow>
cudaError_t launchRowCopy(const void* x, void* y, int64_t rows, int64_t row_bytes, SourceRow sourceRow,
                          cudaStream_t stream) {
  if (rows <= 0 || row_bytes <= 0) return cudaSuccess;
  const unsigned blocks = gridSize(ceilDiv<int64_t>(rows, kRowCopyWarps));
  const auto launch = [&](auto tag) {
    using Word = typename decltype(tag)::Type;
    rowCopyKernel<<<blocks, kRowCopyThreads, 0, stream>>>(static_cast<const Word*>(x), static_cast<Word*>(y), rows,
                                                          row_bytes / static_cast<int64_t>(sizeof(Word)), sourceRow);
    return cudaGetLastError();
  };
  if (isAligned(row_bytes, 16)) return launch(TypeTag<uint4>{});
  if (isAligned(row_bytes, 4)) return launch(TypeTag<unsigned>{});
  if (isAligned(row_bytes, 2)) return launch(TypeTag<unsigned short>{});
  return cudaErrorInvalidValue;
}

}  // namespace padfree
