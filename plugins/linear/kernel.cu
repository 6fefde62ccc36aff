// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "common/launch.h"
#include "linear/kernel.h"

namespace padfree {
namespace {

constexpr LinearTile kClusters[] = {{0, 2, 1}, {0, 1, 2}, {0, 1, 1}};
constexpr int kFetchBytesPerCycle = 32;  // from the L2 cache to a multiprocessor, all of them fetching
constexpr int kTileCycles = 1000;        // first fetch and last write

int tileCycles(const LinearTile& tile, int K) {
  const int multiply = 4 * tile.tokens;  // of a stage: 64 of the reduction
  const int bytes = kLinearFeatures * 128 / tile.cluster_tokens + tile.tokens * 128 / tile.cluster_features;
  return ceilDiv(K, 64) * std::max(multiply, bytes / kFetchBytesPerCycle) + kTileCycles;
}

}  // namespace

LinearTile chooseLinearTile(int T, int K, int N, int multiprocessors) {
  LinearTile best{};
  int64_t best_cycles = std::numeric_limits<int64_t>::max();
  for (LinearTile tile : kClusters) {
    for (tile.tokens = kMaxLinearTokens; tile.tokens > 0; tile.tokens -= 16) {
      const int64_t clusters =
          int64_t{ceilDiv(N, kLinearFeatures * tile.cluster_features)} * ceilDiv(T, tile.tokens * tile.cluster_tokens);
      const int64_t at_once = std::max(multiprocessors / (tile.cluster_features * tile.cluster_tokens), 1);
      const int64_t cycles = ceilDiv(clusters, at_once) * tileCycles(tile, K);
      if (cycles < best_cycles) {
        best_cycles = cycles;
        best = tile;
      }
    }
  }
  return best;
}

cudaError_t launchLinear(const LinearParams& params, cudaStream_t stream) {
  int device = 0, multiprocessors = 0, major = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (status != cudaSuccess) return status;
  if (major != 9) return cudaErrorNoKernelImageForDevice;
  return launchLinearSm90(params, chooseLinearTile(params.T, params.K, params.N, multiprocessors), stream);
}

#ifndef PADFREE_ARCH_90
cudaError_t launchLinearSm90(const LinearParams&, const LinearTile&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
#endif

}  // namespace padfree
