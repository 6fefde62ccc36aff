// SPDX-License-Identifier: Apache-2.0
// Rows of a table for the tokens of a model whose first norm the GEMMs apply, in one pass bound by memory. Beside them
// one block makes the schedule, while the others find their tokens' positions by themselves.
#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "common/moments.cuh"
#include "common/row_norm.cuh"
#include "schedule/block.cuh"
#include "schedule/token_position.cuh"
#include "token_rows/launch.h"

namespace padfree {
namespace {

constexpr int kTableRowThreads = 256;
constexpr int kTableRowBlocks = 5;   // per multiprocessor, at least: 6 spill
constexpr int kTableRowVectors = 4;  // of a row, that a thread has in flight

// One warp per token. kSchedules: for up to kWarpSize sequences; as kernels of their own, schedule and positions would
// begin and end one after the other.
template <typename T, bool kSchedules>
__global__ void __launch_bounds__(kTableRowThreads, kTableRowBlocks) tokenRowsKernel(TokenRowsParams p) {
  constexpr int kWarps = kTableRowThreads / kWarpSize, kStep = kTableRowVectors * kWarpSize * kMomentWidth;
  if constexpr (kSchedules) {
    if (blockIdx.x == 0) return makeSchedule<kWarps>(p.schedule);
  }
  waitForPriorGrids();
  const int lane = threadIdx.x % kWarpSize;
  const int token = (blockIdx.x - kSchedules) * kWarps + threadIdx.x / kWarpSize;
  if (token >= p.T) return;
  const int id = p.ids[token];
  const bool inside_table = static_cast<unsigned>(id) < static_cast<unsigned>(p.V);
  const T* const row = inside_table ? static_cast<const T*>(p.table) + static_cast<int64_t>(id) * p.N : nullptr;
  uint4 raw[kTableRowVectors];
  const auto column = [&](int first, int i) { return first + (i * kWarpSize + lane) * kMomentWidth; };
  const auto load = [&](int first) {
    loadVectors(row, raw, [&](int i) { return column(first, i); }, [&](int i) { return column(first, i) < p.N; });
  };
  load(0);
  if constexpr (kSchedules) {
    if (p.schedule.positions) {
      const TokenPosition position = positionAmong<kWarpSize>(p.schedule.seq_lens, p.schedule.B, p.T, token);
      if (lane == 0) p.schedule.positions[token] = position.filler ? 0 : position.in_sequence;
    }
  }
  releaseNextGrid();
  T* const y = static_cast<T*>(p.y) + static_cast<int64_t>(token) * p.N;
  float2* const moments = reinterpret_cast<float2*>(p.moments);
#pragma unroll 1
  for (int first = 0; first < p.N; first += kStep) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < kTableRowVectors; ++i) {
      const int e = column(first, i);
      float x[kMomentWidth];
      unpackFloats<T>(raw[i], x);
#pragma unroll
      for (int k = 0; k < kMomentWidth; ++k) x[k] = toFloat(fromFloat<T>(x[k] * p.scale));
      if (e < p.N) storeFloats(y + e, x);
      if (!moments) continue;
      const float2 of_group = momentsOf(x);
      if (e < p.N && lane % kGroupLanes == 0) moments[int64_t{e / kMomentFeatures} * p.T + token] = of_group;
    }
  }
}

template <typename T, bool kSchedules>
cudaError_t launchRowsOf(const TokenRowsParams& p, cudaStream_t stream) {
  const unsigned blocks = ceilDiv(p.T, kTableRowThreads / kWarpSize) + kSchedules;
  return launchDependent(tokenRowsKernel<T, kSchedules>, blocks, kTableRowThreads, 0, stream, p);
}

}  // namespace

cudaError_t launchTokenRows(const TokenRowsParams& request, cudaStream_t stream) {
  TokenRowsParams params = request;
  if (params.N <= 0 || params.N % kMomentFeatures != 0) return cudaErrorInvalidValue;
  if (!isAligned16(params.table) || !isAligned16(params.y)) return cudaErrorMisalignedAddress;
  const bool has_schedule = params.schedule.cu_seqlens;
  const bool is_beside = has_schedule && params.T > 0 && params.schedule.B <= kWarpSize;
  if (has_schedule) {
    const cudaError_t status = is_beside ? prepareSchedule(params.schedule) : launchSchedule(params.schedule, stream);
    if (status != cudaSuccess) return status;
  }
  if (params.T <= 0) return cudaSuccess;
  return dispatchHalf(params.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return is_beside ? launchRowsOf<T, true>(params, stream) : launchRowsOf<T, false>(params, stream);
  });
}

}  // namespace padfree
