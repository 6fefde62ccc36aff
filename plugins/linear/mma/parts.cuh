// SPDX-License-Identifier: Apache-2.0
// Blocks that share a tile: each sums its own part of the reduction, and the last adds what the others found, always in
// the same order.
#pragma once

#include <type_traits>

#include "common/ptx/memory.cuh"
#include "linear/mma/tile.cuh"
#include "linear/mma/work.cuh"

namespace padfree {

// The scratch memory holds a mark for each block and then the sums of each. Nothing has cleared it, but what other
// layers left there is no mark: that is a NaN in every width of floats. The block that has seen a mark takes it away
// again, so that the next launch finds none.
//
// The last part's blocks wait. Blocks start in the order of their numbers, and those of the last part have higher ones
// than those of the others: they wait for blocks that have started and wait for nobody. Blocks of whole tiles come
// after them all, so that multiprocessors compute while a block waits.
template <typename Tile>
class MmaParts {
  static constexpr unsigned long long kMark = 0x7fa57fb17fc97fd3ull;

 public:
  // Whether sums are exchanged row by row, when those of all slices have met in shared memory; else from registers.
  static constexpr bool kOfRows = Tile::kSlices > 1;

  __device__ MmaParts(const MmaWork& work, int block) : tiles_(work.shared_tiles) {
    last_ = work.parts - 1;
    part_ = block / tiles_;
    tile_ = block - part_ * tiles_;
    if (!kOfRows && part_ > last_) {  // a whole tile
      tile_ = block - last_ * tiles_;
      part_ = last_ = 0;
    }
    const int shared_tile = last_ > 0 ? tile_ : 0;
    marks_ = static_cast<unsigned long long*>(work.scratch) + shared_tile;
    sums_ = reinterpret_cast<float*>(static_cast<unsigned long long*>(work.scratch) + kMmaMaxSharingBlocks) +
            shared_tile * kFloats;
  }

  __device__ int tile() const { return tile_; }
  __device__ int part() const { return part_; }
  __device__ int count() const { return last_ + 1; }
  __device__ bool isLast() const { return part_ == last_; }

  // Hands a thread's sums to the block that has the last part.
  template <typename Sums>
  __device__ void share(const Sums& sums) const {
    float4* const to = reinterpret_cast<float4*>(sums_ + part_ * tiles_ * kFloats) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < Tile::kTokenBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * Tile::kFeaturePairs; ++j) {
        to[(i * 2 * Tile::kFeaturePairs + j) * Tile::kThreads] = {sums[i][j][0], sums[i][j][1], sums[i][j][2],
                                                                  sums[i][j][3]};
      }
    }
    publish();
  }

  // Waits for the other parts, and adds what the same thread of each has found.
  template <typename Sums>
  __device__ void gather(Sums& sums) const {
    wait();
    const float4* from = reinterpret_cast<const float4*>(sums_) + threadIdx.x;
#pragma unroll 1
    for (int part = 0; part < last_; ++part, from += tiles_ * kFloats / 4) {
#pragma unroll
      for (int i = 0; i < Tile::kTokenBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * Tile::kFeaturePairs; ++j) {
          const float4 other = __ldcg(from + (i * 2 * Tile::kFeaturePairs + j) * Tile::kThreads);
          sums[i][j][0] += other.x;
          sums[i][j][1] += other.y;
          sums[i][j][2] += other.z;
          sums[i][j][3] += other.w;
        }
      }
    }
  }

  // Stores 8 neighbouring sums of a row of the tile.
  __device__ void store(const float (&values)[8], int row, int feature) const {
    float4* const to = reinterpret_cast<float4*>(sums_ + part_ * tiles_ * kFloats + row * Tile::kFeatures + feature);
    to[0] = {values[0], values[1], values[2], values[3]};
    to[1] = {values[4], values[5], values[6], values[7]};
  }

  // Adds those of the other parts.
  __device__ void add(float (&values)[8], int row, int feature) const {
    const float* from = sums_ + row * Tile::kFeatures + feature;
#pragma unroll 4
    for (int part = 0; part < last_; ++part, from += tiles_ * kFloats) {
      const float4 low = __ldcg(reinterpret_cast<const float4*>(from)),
                   high = __ldcg(reinterpret_cast<const float4*>(from) + 1);
      const float both[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] += both[i];
    }
  }

  // Says that all threads of this block have stored their sums.
  __device__ void publish() const {
    perturb();
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      storeGlobal(marks_ + part_ * tiles_, kMark);
    }
  }

  // Waits until all the others have.
  __device__ void wait() const {
    if (static_cast<int>(threadIdx.x) < last_) {
      unsigned long long* const mark = marks_ + threadIdx.x * tiles_;
      while (loadGlobal(mark) != kMark) {
      }
      *mark = 0;
    }
    __syncthreads();
  }

 private:
  static constexpr int kFloats = Tile::kTokens * Tile::kFeatures;
  static_assert(kFloats <= (kOfRows ? kMmaSharedTileFloats : kMmaTailTileFloats));
  static_assert(kMmaMaxParts <= Tile::kThreads);

  const int tiles_;
  int tile_, part_, last_;
  unsigned long long* marks_;
  float* sums_;
};

// The same where every tile has a block of its own.
class MmaNoParts {
 public:
  static constexpr bool kOfRows = false;

  __device__ MmaNoParts(const MmaWork&, int block) : tile_(block) {}

  __device__ int tile() const { return tile_; }

 private:
  const int tile_;
};

template <typename Tile, bool kShared>
using MmaPartsOf = std::conditional_t<kShared, MmaParts<Tile>, MmaNoParts>;

}  // namespace padfree
