// SPDX-License-Identifier: Apache-2.0
// What becomes of a tile's sums. A warp passes 16 rows of 64 features at a time through shared memory, so that a lane
// gets 8 or 16 neighbouring features, and stores 16 bytes of results at once.
#pragma once

#include "common/ptx/memory.cuh"
#include "linear/activation.cuh"
#include "linear/mma/main_loop.cuh"
#include "linear/rotation.cuh"

namespace padfree {

// Each kind is a kernel of its own, which waits for no code of the others.
enum class MmaEpilogueKind {
  kPlain,  // a bias, an activation
  kAdded,  // a residual or moments, or results in both types
  kPairs   // gates or rotated pairs
};

inline MmaEpilogueKind mmaEpilogueKindOf(const LinearParams& p) {
  if (p.gated || p.rotary_features > 0) return MmaEpilogueKind::kPairs;
  return p.residual || p.moments || (p.y && p.y_e4m3) ? MmaEpilogueKind::kAdded : MmaEpilogueKind::kPlain;
}

// Sums of 16 rows in shared memory, of each slice behind those of the one before. Rows are 32 bytes of banks apart, and
// units of 16 bytes change places with their neighbours in the upper half, so that neither stores nor loads meet
// conflicts.
template <typename Tile>
class MmaRows {
 public:
  static constexpr int kRows = 16, kRowFloats = kMmaWarpFeatures + 8, kFloats = kRows * kRowFloats;
  static_assert(Tile::kWarps * kFloats * static_cast<int>(sizeof(float)) <= Tile::kScaleOffset);

  __device__ MmaRows(unsigned char* shared, const MmaWarp<Tile>& warp)
      : first_(reinterpret_cast<float*>(shared) + threadIdx.x / kWarpSize % kParts * kFloats),
        lane_(warp.lane),
        slice_(warp.slice) {}

  // Stores this warp's sums of block i.
  __device__ void store(const MmaSums<Tile>& sums, int i) const {
    float* const own = first_ + slice_ * kParts * kFloats + lane_ / 4 * kRowFloats;
#pragma unroll
    for (int block = 0; block < Tile::kTokenBlocks; ++block) {
      if (block != i) continue;  // registers have no addresses
#pragma unroll
      for (int j = 0; j < kMmaWarpFeatures / 8; ++j) {
        float* const at = own + j * 8 + (lane_ % 4 * 2 ^ j / 4 * 4);
        *reinterpret_cast<float2*>(at) = {sums[block][j][0], sums[block][j][1]};
        *reinterpret_cast<float2*>(at + 8 * kRowFloats) = {sums[block][j][2], sums[block][j][3]};
      }
    }
  }

  // The sums of 8 features of a row, over all slices.
  __device__ void load(float (&values)[8], int row, int chunk) const {
    const float* at = first_ + row * kRowFloats + chunk * 8;
    const int swap = chunk / 4 * 4;
#pragma unroll
    for (int slice = 0; slice < Tile::kSlices; ++slice, at += kParts * kFloats) {
      const float4 low = *reinterpret_cast<const float4*>(at + swap),
                   high = *reinterpret_cast<const float4*>(at + (4 ^ swap));
      const float both[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = slice == 0 ? both[i] : values[i] + both[i];
    }
  }

 private:
  static constexpr int kParts = Tile::kWarpRows * Tile::kWarpColumns;
  float* const first_;
  const int lane_, slice_;
};

// 8 neighbouring features: what they are multiplied by and what is added.
template <typename Operands>
class MmaAffine {
  using T = typename Operands::Result;

 public:
  __device__ MmaAffine(const MmaWork& p, int feature) {
    const bool is_there = feature < p.N;
#pragma unroll
    for (int i = 0; i < 8; ++i) bias_[i] = 0.f;
    if (is_there && p.bias) loadFloats<8>(static_cast<const T*>(p.bias) + feature, bias_);
    if constexpr (Operands::kScaled) {
      if (is_there) loadScale(p.scale + feature);
    }
  }

  __device__ void apply(float (&values)[8], float row_scale) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float scale = row_scale;
      if constexpr (Operands::kScaled) scale *= scale_[i];
      values[i] = fmaf(scale, values[i], bias_[i]);
    }
  }

 private:
  // Aligned to a float alone.
  __device__ void loadScale(const float* scale) {
#pragma unroll
    for (int i = 0; i < 8; ++i) scale_[i] = scale[i];
  }

  float bias_[8], scale_[Operands::kScaled ? 8 : 1];
};

// Stores 8 neighbouring results.
template <typename T, bool kE4m3>
__device__ inline void storeMmaResults(const MmaWork& p, const unsigned (&packed)[4], const float (&values)[4][2],
                                       int64_t offset) {
  if (p.y) store16Bytes(static_cast<T*>(p.y) + offset, packed);
  if constexpr (kE4m3) {
    if (!p.y_e4m3) return;
    uint2 codes;
    const auto codeOf = [&](int i) {
      return packE4m3(values[i][0] * p.per_y_scale, values[i][1] * p.per_y_scale) |
             packE4m3(values[i + 1][0] * p.per_y_scale, values[i + 1][1] * p.per_y_scale) << 16;
    };
    codes.x = codeOf(0);
    codes.y = codeOf(2);
    *reinterpret_cast<uint2*>(static_cast<unsigned char*>(p.y_e4m3) + offset) = codes;
  }
}

template <typename Operands, typename Tile, MmaEpilogueKind kKind>
class MmaEpilogue {
  using T = typename Operands::Result;
  using Values = float[8];
  static constexpr bool kAdds = kKind == MmaEpilogueKind::kAdded;

 public:
  // The tile begins at `token` and `feature`; scales: of its rows.
  __device__ MmaEpilogue(const MmaWork& work, const MmaWarp<Tile>& warp, const float2* scales, unsigned char* shared,
                         int token, int feature)
      : p_(work),
        warp_(warp),
        rows_(shared, warp),
        scales_(scales + warp.token),
        token_(token + warp.token),
        first_(feature + warp.feature) {}

  __device__ void run(const MmaSums<Tile>& sums) const {
    if constexpr (kKind == MmaEpilogueKind::kPairs) {
      forEachBlock(sums, [&](int block) { storePairs(block, first_ + warp_.lane % 4 * kPairBlock); });
    } else {
      const int feature = first_ + warp_.lane % 8 * 8;
      const MmaAffine<Operands> affine(p_, feature);
      Values gamma = {};
      if (kAdds && p_.residual_moments && feature < p_.N) loadGamma(gamma, feature);
      forEachBlock(sums, [&](int block) { storeRows(affine, gamma, block, feature); });
    }
  }

 private:
  // Calls body(block) when the sums of 16 rows, of all slices, are in shared memory.
  template <typename Body>
  __device__ void forEachBlock(const MmaSums<Tile>& sums, Body body) const {
#pragma unroll 1
    for (int block = 0; block < Tile::kTokenBlocks; ++block) {
      rows_.store(sums, block);
      sync();
      body(block);
      sync();
    }
  }
  static __device__ void sync() {
    if constexpr (Tile::kSlices == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  __device__ float2 scaleOf(int row) const { return p_.moments_in ? scales_[row] : float2{1.f, 0.f}; }

  // Four rows at a time, 8 lanes each; slices take turns.
  __device__ void storeRows(const MmaAffine<Operands>& affine, const Values& gamma, int block, int feature) const {
    constexpr int kAtOnce = kWarpSize / 8, kTurns = MmaRows<Tile>::kRows / kAtOnce / Tile::kSlices;
    const int lane = warp_.lane;
    uint4 residuals[kTurns];
    const auto rowOf = [&](int turn) { return (turn * Tile::kSlices + warp_.slice) * kAtOnce + lane / 8; };
    const auto isThere = [&](int row) { return token_ + row < p_.T && feature < p_.N; };
    if (kAdds && p_.residual) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int row = block * 16 + rowOf(turn);
        residuals[turn] = isThere(row) ? loadResidual(row, feature) : uint4{};
      }
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int row = block * 16 + rowOf(turn);
      const float2 scale = scaleOf(row);
      Values values;
      rows_.load(values, rowOf(turn), lane % 8);
      affine.apply(values, p_.x_moments ? scale.x : 1.f);
      finish(values, residuals[turn], gamma, scale, row, feature, isThere(row));
    }
  }

  __device__ uint4 loadResidual(int row, int feature) const {
    return *reinterpret_cast<const uint4*>(static_cast<const T*>(p_.residual) + int64_t{token_ + row} * p_.N + feature);
  }

  __device__ void finish(Values& values, const uint4& residual, const Values& gamma, float2 scale, int row, int feature,
                         bool is_there) const {
    auto& pairs = reinterpret_cast<float (&)[4][2]>(values);
    unsigned packed[4];
    if constexpr (kAdds) {
      activate(pairs, p_.activation);
      if (p_.residual) addResidual(values, residual, gamma, scale);
      pack(packed, pairs);
    } else if constexpr (Operands::kScaled) {
      activate(pairs, p_.activation);
      pack(packed, pairs);
    } else {
      activatePairs<T>(packed, pairs, p_.activation);
    }
    if (is_there) storeMmaResults<T, Operands::kScaled>(p_, packed, pairs, int64_t{token_ + row} * p_.N + feature);
    if (kAdds && p_.moments) storeMoments(packed, row);
  }

  static __device__ void pack(unsigned (&packed)[4], const float (&values)[4][2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = packPair<T>(values[i][0], values[i][1]);
  }

  // Aligned to its elements alone.
  __device__ void loadGamma(Values& gamma, int feature) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) gamma[i] = toFloat(static_cast<const T*>(p_.residual_scale)[feature + i]);
  }

  __device__ void addResidual(Values& values, const uint4& bits, const Values& gamma, float2 scale) const {
    Values residual;
    unpackFloats<T>(bits, residual);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = p_.residual_moments ? fmaf(gamma[i], fmaf(scale.x, residual[i], scale.y), values[i])
                                      : values[i] + residual[i];
    }
  }

  // Stores the moments of the numbers that y gets. Called by all lanes of the warp; 8 of them share a row.
  __device__ void storeMoments(const unsigned (&packed)[4], int row) const {
    float sum = 0, squares = 0;
    float2 rounded[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rounded[i] = unpackPair<T>(packed[i]);
      sum += rounded[i].x + rounded[i].y;
    }
    const float mean = rowSum(sum) / kMomentFeatures;
#pragma unroll
    for (const float2& pair : rounded) {
      squares = fmaf(pair.x - mean, pair.x - mean, squares);
      squares = fmaf(pair.y - mean, pair.y - mean, squares);
    }
    squares = rowSum(squares);
    if (warp_.lane % 8 != 0 || token_ + row >= p_.T || first_ >= p_.N) return;
    float2* const moments = reinterpret_cast<float2*>(p_.moments);
    moments[int64_t{first_ / kMomentFeatures} * p_.T + token_ + row] = {mean, squares};
  }
  static __device__ float rowSum(float x) {
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) x += __shfl_xor_sync(kFullMask, x, distance);
    return x;
  }

  // Eight rows at a time, 4 lanes each, which have 8 features and the 8 that belong to them; slices take turns.
  __device__ void storePairs(int block, int feature) const {
    const MmaAffine<Operands> of_u(p_, feature), of_v(p_, feature + 8);
    constexpr int kAtOnce = kWarpSize / 4, kTurns = MmaRows<Tile>::kRows / kAtOnce;
    const int lane = warp_.lane;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (Tile::kSlices > 1 && turn % Tile::kSlices != warp_.slice) continue;
      const int in_block = turn * kAtOnce + lane / 4, row = block * 16 + in_block;
      const float scale = scaleOf(row).x;
      Values u, v;
      rows_.load(u, in_block, lane % 4 * 2);
      rows_.load(v, in_block, lane % 4 * 2 + 1);
      of_u.apply(u, scale);
      of_v.apply(v, scale);
      if (token_ + row >= p_.T || feature >= p_.N) continue;
      if (p_.gated) {
        storeGated(u, v, row, feature);
      } else {
        storeRotated(u, v, row, feature);
      }
    }
  }

  __device__ void storeGated(Values& u, const Values& v, int row, int feature) const {
    auto& pairs = reinterpret_cast<float (&)[4][2]>(u);
    activate(pairs, p_.activation);
#pragma unroll
    for (int i = 0; i < 8; ++i) u[i] *= v[i];
    unsigned packed[4];
    pack(packed, pairs);
    storeMmaResults<T, Operands::kScaled>(p_, packed, pairs, int64_t{token_ + row} * (p_.N / 2) + feature / 2);
  }

  __device__ void storeRotated(Values& x, Values& y, int row, int feature) const {
    if (feature < p_.rotary_features) {
      const float position = static_cast<float>(p_.positions[token_ + row]);
#pragma unroll
      for (int i = 0; i < 8; ++i) rotatePair(x[i], y[i], position * p_.frequencies[feature / 2 + i]);
    }
    const int64_t offset = int64_t{token_ + row} * p_.N + feature;
    unsigned packed[4];
    pack(packed, reinterpret_cast<const float (&)[4][2]>(x));
    store16Bytes(static_cast<T*>(p_.y) + offset, packed);
    if (feature + 8 >= p_.N) return;  // N is a multiple of 8
    pack(packed, reinterpret_cast<const float (&)[4][2]>(y));
    store16Bytes(static_cast<T*>(p_.y) + offset + 8, packed);
  }

  const MmaWork& p_;
  const MmaWarp<Tile> warp_;
  const MmaRows<Tile> rows_;
  const float2* const scales_;
  const int token_, first_;  // of the warp
};

}  // namespace padfree
