// SPDX-License-Identifier: Apache-2.0
// What becomes of a tile's sums. A warp passes 16 rows of 64 features at a time through shared memory, so that a lane
// gets 8 or 16 neighbouring features, and stores 16 bytes of results at once.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/ptx/memory.cuh"
#include "linear/activation.cuh"
#include "linear/mma/main_loop.cuh"
#include "linear/rotation.cuh"

namespace padfree {

// Sums of 16 rows in shared memory, those of each slice after those of the slice before. Rows are 32 bytes of banks
// apart, and units of 16 bytes change places with their neighbours in the upper half, so that neither stores nor loads
// meet conflicts.
template <typename Tile>
class MmaRows {
 public:
  static constexpr int kRows = 16, kRowFloats = kMmaWarpFeatures + 8, kFloats = kRows * kRowFloats;
  static_assert(Tile::kWarps * kFloats * static_cast<int>(sizeof(float)) <= Tile::kStages * Tile::kStageBytes);

  __device__ MmaRows(unsigned char* shared, const MmaWarp<Tile>& warp)
      : first_(reinterpret_cast<float*>(shared) + threadIdx.x / kWarpSize % kParts * kFloats),
        lane_(warp.lane),
        slice_(warp.slice) {}

  // Stores this warp's sums of block i.
  template <typename Sums>
  __device__ void store(const Sums& sums, int i) const {
    float* const own = first_ + slice_ * kParts * kFloats + lane_ / 4 * kRowFloats;
#pragma unroll
    for (int block = 0; block < Tile::kTokenBlocks; ++block) {
      if (block != i) continue;  // registers have no addresses
#pragma unroll
      for (int j = 0; j < kMmaWarpFeatures / 8; ++j) {
        float* const at = own + j * 8 + (lane_ % 4 * 2 ^ j / 4 * 4);
        *reinterpret_cast<float2*>(at) = pairOf(sums[block][j][0], sums[block][j][1]);
        *reinterpret_cast<float2*>(at + 8 * kRowFloats) = pairOf(sums[block][j][2], sums[block][j][3]);
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

  template <typename Sum>
  static __device__ float2 pairOf(Sum a, Sum b) {
    return {static_cast<float>(a), static_cast<float>(b)};
  }

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
  // They are aligned only to a float.
  __device__ void loadScale(const float* scale) {
#pragma unroll
    for (int i = 0; i < 8; ++i) scale_[i] = scale[i];
  }

  float bias_[8], scale_[Operands::kScaled ? 8 : 1];
};

// What 8 neighbouring results are multiplied by for int8.
template <typename Operands>
class MmaFactors {
 public:
  // For the results from `result` on; there are `count` in all.
  __device__ MmaFactors(const MmaWork& p, int result, int count) {
    if constexpr (Operands::kInt8) {
#pragma unroll
      for (int i = 0; i < 8; ++i) values_[i] = p.y_int8 && result < count ? p.y_factors[result + i] : 0.f;
    }
  }

  __device__ uint2 round(const float (&x)[8]) const {
    const auto at = [&](int i) { return x[i] * values_[i]; };
    return {packInt8(at(0), at(1), at(2), at(3)), packInt8(at(4), at(5), at(6), at(7))};
  }

 private:
  float values_[Operands::kInt8 ? 8 : 1];
};

// 8 neighbouring results, in the type of y, and in e4m3 or int8.
template <typename Operands>
struct MmaResults {
  using T = typename Operands::Result;
  unsigned y[4];
  uint2 bytes;

  __device__ void set(const MmaWork& p, const float (&values)[8], const MmaFactors<Operands>& factors) {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = packPair<T>(values[2 * i], values[2 * i + 1]);
    if constexpr (Operands::kE4m3) {
      bytes = {codes(p, values[0], values[1], values[2], values[3]),
               codes(p, values[4], values[5], values[6], values[7])};
    }
    if constexpr (Operands::kInt8) bytes = factors.round(values);
  }

  __device__ void store(const MmaWork& p, int64_t offset) const {
    if (!Operands::kScaled || p.y) store16Bytes(static_cast<T*>(p.y) + offset, y);
    if constexpr (Operands::kScaled) {
      void* const to = Operands::kInt8 ? p.y_int8 : p.y_e4m3;
      if (to) *reinterpret_cast<uint2*>(static_cast<unsigned char*>(to) + offset) = bytes;
    }
  }

 private:
  static __device__ unsigned codes(const MmaWork& p, float a, float b, float c, float d) {
    return packE4m3(a * p.per_y_scale, b * p.per_y_scale) | packE4m3(c * p.per_y_scale, d * p.per_y_scale) << 16;
  }
};

template <typename Operands, typename Tile, MmaEpilogueKind kKind, typename Parts>
class MmaEpilogue {
  using T = typename Operands::Result;
  using Values = float[8];
  static constexpr bool kInPlace = kKind == MmaEpilogueKind::kInPlace, kAny = kKind == MmaEpilogueKind::kAny;
  static constexpr bool kEarly = kInPlace && Tile::kSlices == 4;
  static constexpr int kAllTurns = MmaRows<Tile>::kRows / (kWarpSize / 8) / Tile::kSlices;
  static constexpr int kTurns = kAny ? 1 : kAllTurns;  // whose instructions overlap

 public:
  // The tile begins at `token` and `feature`; scales: of its rows.
  __device__ MmaEpilogue(const MmaWork& work, const MmaWarp<Tile>& warp, const Parts& parts, const float2* scales,
                         unsigned char* shared, int token, int feature)
      : p_(work),
        warp_(warp),
        parts_(parts),
        rows_(shared, warp),
        scales_(scales + warp.token),
        token_(token + warp.token),
        first_(feature + warp.feature) {}

  // Brings what is the same for all tokens into the L2 cache: it comes from memory in every layer.
  static __device__ void prefetch(const MmaWork& work, int feature) {
    const int features = min(Tile::kFeatures, work.N - feature);
    const auto bring = [&](const auto* values) {
      if (values) prefetchToL2(values + feature, features * sizeof(*values), threadIdx.x, Tile::kThreads);
    };
    bring(static_cast<const T*>(work.bias));
    if (Operands::kScaled) bring(work.scale);
    if (kInPlace) bring(static_cast<const T*>(work.residual_scale));
  }

  // Loads a residual while the first stages are fetched, where a lane needs few numbers of it.
  __device__ void loadEarly() {
    if constexpr (kEarly) {
#pragma unroll
      for (int block = 0; block < Tile::kTokenBlocks; ++block) {
        const int row = block * 16 + warp_.slice * 4 + warp_.lane / 8, feature = first_ + warp_.lane % 8 * 8;
        early_[block] = token_ + row < p_.T && feature < p_.N ? loadResidual(row, feature) : uint4{};
      }
    }
  }

  // The sums go to the block that has the last part of the reduction.
  __device__ void share(const MmaSums<Operands, Tile>& sums) const {
    forEachBlock(sums, [&](int block) {
#pragma unroll
      for (int turn = 0; turn < kAllTurns; ++turn) {
        Values values;
        rows_.load(values, rowOf(turn), warp_.lane % 8);
        parts_.store(values, warp_.token + block * 16 + rowOf(turn), warp_.feature + warp_.lane % 8 * 8);
      }
    });
    parts_.publish();
  }

  __device__ void run(const MmaSums<Operands, Tile>& sums) const {
    if constexpr (Parts::kOfRows) parts_.wait();
    if constexpr (kKind == MmaEpilogueKind::kPairs) {
      forEachBlock(sums, [&](int block) { storePairs(block, first_ + warp_.lane % 4 * kPairBlock); });
    } else {
      const int feature = first_ + warp_.lane % 8 * 8;
      const MmaAffine<Operands> affine(p_, feature);
      const MmaFactors<Operands> factors(p_, feature, p_.N);
      Values gamma = {};
      if ((kInPlace || kAny) && p_.residual_moments && feature < p_.N) loadGamma(gamma, feature);
      forEachBlock(sums, [&](int block) { storeRows(affine, factors, gamma, block, feature); });
    }
  }

 private:
  // Calls body(block) when the sums of 16 rows, of all slices, are in shared memory.
  template <typename Body>
  __device__ void forEachBlock(const MmaSums<Operands, Tile>& sums, Body body) const {
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

  // The row of 16 that a lane has in a turn.
  __device__ int rowOf(int turn) const {
    return (turn * Tile::kSlices + warp_.slice) * (kWarpSize / 8) + warp_.lane / 8;
  }

  __device__ float2 scaleOf(int row) const { return p_.moments_in ? scales_[row] : float2{1.f, 0.f}; }

  __device__ bool hasResidual() const { return kInPlace || (kAny && p_.residual); }
  __device__ bool hasMoments() const { return kInPlace || (kAny && p_.moments); }

  // Four rows at a time, 8 lanes each; slices take turns.
  __device__ void storeRows(const MmaAffine<Operands>& affine, const MmaFactors<Operands>& factors, const Values& gamma,
                            int block, int feature) const {
#pragma unroll 1
    for (int turn = 0; turn < kAllTurns; turn += kTurns) {
      storeRows(affine, factors, gamma, block, feature, turn);
    }
  }

  // The rows of a few turns: everything is computed before it is stored, so that they do not wait for each other.
  __device__ void storeRows(const MmaAffine<Operands>& affine, const MmaFactors<Operands>& factors, const Values& gamma,
                            int block, int feature, int first) const {
    const auto isThere = [&](int row) { return token_ + row < p_.T && feature < p_.N; };
    uint4 residuals[kTurns];
    MmaResults<Operands> results[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int row = block * 16 + rowOf(first + turn);
      if constexpr (kEarly) {
        residuals[turn] = early_[0];
#pragma unroll
        for (int i = 1; i < Tile::kTokenBlocks; ++i) residuals[turn] = i == block ? early_[i] : residuals[turn];
      } else {
        residuals[turn] = hasResidual() && isThere(row) ? loadResidual(row, feature) : uint4{};
      }
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int row = rowOf(first + turn);
      const float2 scale = scaleOf(block * 16 + row);
      Values values;
      rows_.load(values, row, warp_.lane % 8);
      if constexpr (Parts::kOfRows) {
        parts_.add(values, warp_.token + block * 16 + row, warp_.feature + warp_.lane % 8 * 8);
      }
      affine.apply(values, p_.x_moments ? scale.x : 1.f);
      finish(results[turn], values, factors, residuals[turn], gamma, scale);
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int row = block * 16 + rowOf(first + turn);
      if (isThere(row)) results[turn].store(p_, int64_t{token_ + row} * p_.N + feature);
    }
    if (hasMoments()) storeMoments(results, block * 16 + rowOf(first));
  }

  __device__ uint4 loadResidual(int row, int feature) const {
    return *reinterpret_cast<const uint4*>(static_cast<const T*>(p_.residual) + int64_t{token_ + row} * p_.N + feature);
  }

  __device__ void finish(MmaResults<Operands>& results, Values& values, const MmaFactors<Operands>& factors,
                         const uint4& residual, const Values& gamma, float2 scale) const {
    if constexpr (kKind == MmaEpilogueKind::kGelu && !Operands::kScaled) {
#pragma unroll
      for (int i = 0; i < 4; ++i) results.y[i] = geluPair<T>(values[2 * i], values[2 * i + 1]);
      return;
    }
    if constexpr (kKind == MmaEpilogueKind::kGelu) {
#pragma unroll
      for (float& x : values) x = gelu(x);
    }
    if constexpr (kAny) activate(reinterpret_cast<float (&)[4][2]>(values), p_.activation);
    if (hasResidual()) addResidual(values, residual, gamma, scale);
    results.set(p_, values, factors);
  }

  // It is aligned only to its elements.
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

  // Stores the moments of the numbers that y gets, of the row `first` and of those of the following turns. Called by
  // all lanes of the warp; 8 of them share a row.
  __device__ void storeMoments(const MmaResults<Operands> (&results)[kTurns], int first) const {
    float means[kTurns], squares[kTurns];
    const auto forEachPair = [&](auto body) {
#pragma unroll
      for (int i = 0; i < kTurns * 4; ++i) body(i / 4, unpackPair<T>(results[i / 4].y[i % 4]));
    };
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) means[turn] = squares[turn] = 0.f;
    forEachPair([&](int turn, float2 pair) { means[turn] += pair.x + pair.y; });
    sumOverRow(means);
#pragma unroll
    for (float& mean : means) mean /= kMomentFeatures;
    forEachPair([&](int turn, float2 pair) {
      squares[turn] = fmaf(pair.x - means[turn], pair.x - means[turn], squares[turn]);
      squares[turn] = fmaf(pair.y - means[turn], pair.y - means[turn], squares[turn]);
    });
    sumOverRow(squares);
    if (warp_.lane % 8 != 0 || first_ >= p_.N) return;
    float2* const moments = reinterpret_cast<float2*>(p_.moments) + int64_t{first_ / kMomentFeatures} * p_.T;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int row = token_ + first + turn * Tile::kSlices * (kWarpSize / 8);
      if (row < p_.T) moments[row] = {means[turn], squares[turn]};
    }
  }
  static __device__ void sumOverRow(float (&values)[kTurns]) {
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
#pragma unroll
      for (float& x : values) x += __shfl_xor_sync(kFullMask, x, distance);
    }
  }

  // Eight rows at a time, 4 lanes each, which have 8 features and the 8 that belong to them; slices take turns.
  __device__ void storePairs(int block, int feature) const {
    const MmaAffine<Operands> of_u(p_, feature), of_v(p_, feature + 8);
    constexpr int kAtOnce = kWarpSize / 4, kPairTurns = MmaRows<Tile>::kRows / kAtOnce;
    const int lane = warp_.lane;
#pragma unroll
    for (int turn = 0; turn < kPairTurns; ++turn) {
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
    activate(reinterpret_cast<float (&)[4][2]>(u), p_.activation);
#pragma unroll
    for (int i = 0; i < 8; ++i) u[i] *= v[i];
    storeValues(u, {p_, feature / 2, p_.N / 2}, int64_t{token_ + row} * (p_.N / 2) + feature / 2);
  }

  __device__ void storeRotated(Values& x, Values& y, int row, int feature) const {
    if (feature < p_.rotary_features) {
      const float position = static_cast<float>(p_.positions[token_ + row]);
#pragma unroll
      for (int i = 0; i < 8; ++i) rotatePair(x[i], y[i], position * p_.frequencies[feature / 2 + i]);
    }
    const int64_t offset = int64_t{token_ + row} * p_.N + feature;
    storeValues(x, {p_, feature, p_.N}, offset);
    if (feature + 8 < p_.N) storeValues(y, {p_, feature + 8, p_.N}, offset + 8);  // N is a multiple of 8
  }

  __device__ void storeValues(const Values& values, const MmaFactors<Operands>& factors, int64_t offset) const {
    MmaResults<Operands> results;
    results.set(p_, values, factors);
    results.store(p_, offset);
  }

  const MmaWork& p_;
  const MmaWarp<Tile> warp_;
  const Parts parts_;
  const MmaRows<Tile> rows_;
  const float2* const scales_;
  const int token_, first_;  // of the warp
  uint4 early_[kEarly ? Tile::kTokenBlocks : 1];
};

}  // namespace padfree
