// SPDX-License-Identifier: Apache-2.0
// Shared memory as wgmma reads and TMA writes it: panels of 64 columns of 2-byte elements, whose rows of 128 bytes have
// their 16-byte chunks permuted by the row ("128-byte swizzle"), so that neither copies nor the matrix unit meet bank
// conflicts.
#pragma once

#include <cuda_runtime.h>

namespace padfree {

constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;

// Byte offset of a 16-byte chunk in a panel that starts at a multiple of 1024 bytes.
__device__ inline int panelOffset(int row, int chunk) {
  return row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4);
}

// Narrow panels have rows of half as many bytes ("64-byte swizzle"), and start at a multiple of 512.
constexpr int kNarrowPanelRowBytes = kPanelRowBytes / 2;

// The same in a narrow panel.
__device__ inline int narrowPanelOffset(int row, int chunk) {
  return row * kNarrowPanelRowBytes + ((chunk ^ (row >> 1 & 3)) << 4);
}

}  // namespace padfree
