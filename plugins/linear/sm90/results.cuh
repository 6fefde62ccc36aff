// SPDX-License-Identifier: Apache-2.0
// How results of fp16 or bf16 get to the memory that they leave from. A thread has the sums of features r and r + 8, r
// = lane / 4, of its warp's 16: a transposing store makes columns of features again. (Results of GEMMs in e4m3:
// results_e4m3.cuh, with the same members.)
#pragma once

#include "common/panel.cuh"
#include "common/ptx/mma.cuh"
#include "linear/activation.cuh"
#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

// A thread's part of a box of 16 tokens: of tokens 8 * (i / 2) + 2 * (lane % 4) + k, i % 2 its first or second feature.
using BoxValues = float[4][2];

template <typename T, typename Epilogue>
struct HalfResults {
  static constexpr int kFeatureStep = 8;  // from a thread's first feature to its second
  static __device__ int firstFeature(int lane) { return lane / 4; }

  // Where this thread's rows of a box that leaves from `panel` are, for matrices to be loaded or stored.
  static __device__ unsigned char* addressIn(unsigned char* panel, int warp, int lane) {
    if (Epilogue::out == Out::kNarrowChunks) return panel + narrowPanelOffset(lane % 16, warp);
    const int row = lane / 16 * 8 + lane % 8, column = warp * 2 + lane / 8 % 2;
    return panel + panelOffset(row, column);
  }

  // Activated or gated, to the panel that a box leaves from; calls loadNext ahead of the store.
  template <typename LoadNext>
  static __device__ void storeActivated(BoxValues& value, unsigned char* panel, int warp, int lane,
                                        const Epilogue& epilogue, const Work&, LoadNext loadNext) {
    unsigned packed[Epilogue::gated ? 2 : 4];
    if constexpr (Epilogue::gated) {
#pragma unroll
      for (int k = 0; k < 2; ++k) packed[k] = gatePair<T>(value[2 * k], value[2 * k + 1], epilogue.activation);
    } else {
      activatePairs<T>(packed, value, epilogue.activation);
    }
    loadNext();
    storeMatricesTransposed(packed, addressIn(panel, warp, lane));
  }

  static __device__ void loadResidual(unsigned (&packed)[4], unsigned char* panel, int warp, int lane) {
    loadMatricesTransposed(packed, addressIn(panel, warp, lane));
  }
  static __device__ float2 residualOf(const unsigned (&packed)[4], int i) { return unpackPair<T>(packed[i]); }

  // Box `box` of a tile that all leaves from `out`.
  template <int kTokens>
  static __device__ void store(const BoxValues& value, unsigned char* out, int box, int warp, int lane, const Epilogue&,
                               const Work&) {
    unsigned packed[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) packed[k] = packPair<T>(value[k][0], value[k][1]);
    storeMatricesTransposed(packed, addressIn(out + box * kBoxBytes, warp, lane));
  }

  // Calls visit(map, map at once, from, bytes of a box) for what such a tile leaves as.
  template <int kTokens, typename Visit>
  static __device__ void forEachMap(const Maps& maps, unsigned char* out, const Epilogue&, Visit visit) {
    visit(maps.y, maps.y_at_once, out, kBoxBytes);
  }
};

}  // namespace padfree
