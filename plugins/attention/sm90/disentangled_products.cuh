// SPDX-License-Identifier: Apache-2.0
// Products of positions for attention with a disentangled bias on Hopper: of rows with chunks of k_position, of keys
// with chunks of q_position, and how they reach the scores that they belong to (disentangled_kernel.cu).
#pragma once

#include "attention/task.h"
#include "common/device.cuh"
#include "common/ptx/memory.cuh"

namespace padfree {

// Products of rows, [distance][row], and of keys, [key][distance]: strides in floats without bank conflicts, but for
// reads of the latter, which have two-way conflicts.
constexpr int kRowProductsStride = kTaskRows + 4, kKeyProductsStride = kTaskRows + 8;

// What is the same for all scores of a lane in the arrays of products. In a fragment of 16 rows and 8 columns a lane
// has rows group and group + 8, columns 2 * pair and 2 * pair + 1.
struct Lane {
  int group = threadIdx.x % kWarpSize / 4, pair = threadIdx.x % 4;
};

using Fragments = float[8][4];  // 16 rows of a warp and 64 columns

// Stores the products of rows with a chunk that are needed while it is the far one, or the near one.
template <int kWarp, bool kNear>
__device__ void storeRowProducts(const Fragments& products, unsigned array, Lane lane) {
  float* const target = sharedPointer<float>(array) + lane.pair * 2 * kRowProductsStride + lane.group;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // The near chunk holds what is needed from 63 - row on.
      const int half = i / 2, beyond = n + 2 * kWarp + half - 7;
      if (kNear ? beyond < 0 : beyond > 0) continue;
      const bool near = lane.pair * 2 + i % 2 + lane.group >= 7;
      if (beyond != 0 || near == kNear) {
        target[(n * 8 + i % 2) * kRowProductsStride + kWarp * 16 + half * 8] = products[n][i];
      }
    }
  }
}

// Stores the products of keys with both chunks that are needed: those from the key's number on with the
// near chunk, which is number kNear of the two.
template <int kWarp, int kNear>
__device__ void storeKeyProducts(const float (&products)[16][4], unsigned array, Lane lane) {
  float* const target = sharedPointer<float>(array) + lane.group * kKeyProductsStride + lane.pair * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int beyond = n - 2 * kWarp - half;
      float2 stored;
      const auto choose = [&](int i) {
        const bool is_near = beyond > 0 || (beyond == 0 && lane.pair * 2 + i >= lane.group);
        const float of_near = products[n + kNear * 8][half * 2 + i],
                    of_far = products[n + (1 - kNear) * 8][half * 2 + i];
        return is_near ? of_near : of_far;
      };
      stored.x = choose(0);
      stored.y = choose(1);
      *reinterpret_cast<float2*>(target + (kWarp * 16 + half * 8) * kKeyProductsStride + n * 8) = stored;
    }
  }
}

template <int kWarp>
__device__ void storeKeyProducts(const float (&products)[16][4], unsigned array, int near, Lane lane) {
  if (near == 0) {
    storeKeyProducts<kWarp, 0>(products, array, lane);
  } else {
    storeKeyProducts<kWarp, 1>(products, array, lane);
  }
}

// Adds to each score the products that belong to its distance.
template <int kWarp>
__device__ void addProducts(Fragments& scores, unsigned row_products, unsigned key_products, bool has_k_position,
                            bool has_q_position, Lane lane) {
  const auto add = [&](const float* source, int key_stride, int row_stride, int wrap) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, beyond = n - 2 * kWarp - half;
        const int offset = (n * 8 + i % 2) * key_stride + (kWarp * 16 + half * 8) * row_stride;
        const bool far = beyond > 0 || (beyond == 0 && lane.pair * 2 + i % 2 > lane.group);
        scores[n][i] += source[offset - (far ? wrap : 0)];
      }
    }
  };
  const int key = lane.pair * 2, row = lane.group;
  if (has_k_position) {
    constexpr int kStride = kRowProductsStride;
    add(sharedPointer<float>(row_products) + (key + kTaskRows - 1 - row) * kStride + row, kStride, 1 - kStride,
        kTaskRows * kStride);
  }
  if (has_q_position) {
    constexpr int kStride = kKeyProductsStride;
    add(sharedPointer<float>(key_products) + key * kStride + key + kTaskRows - 1 - row, kStride + 1, -1, kTaskRows);
  }
}

template <int kWarp>
struct WarpTag {
  static constexpr int value = kWarp;
};

// Calls function(WarpTag<warp>{}) with the number of this warp, which says what of its fragments goes where.
template <typename Function>
__device__ void dispatchWarp(int warp, const Function& function) {
  switch (warp) {
    case 0:
      return function(WarpTag<0>{});
    case 1:
      return function(WarpTag<1>{});
    case 2:
      return function(WarpTag<2>{});
    default:
      return function(WarpTag<3>{});
  }
}

}  // namespace padfree
