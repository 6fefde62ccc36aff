// SPDX-License-Identifier: Apache-2.0
// What becomes of a tile's sums in the registers of a warpgroup of the Hopper kernels: norms, bias, activation or
// rotation, and the way out in chunks.
#pragma once

#include "common/ptx/mma.cuh"
#include "common/ptx/tma.cuh"
#include "linear/rotation.cuh"
#include "linear/sm90/epilogue.cuh"
#include "linear/sm90/head_sums.cuh"
#include "linear/sm90/shape.cuh"
#include "linear/sm90/work.cuh"

namespace padfree {

// S: how shared memory is laid out, Shape or ResidentShape.
template <typename Operands, typename S, typename Epilogue>
class CollectiveEpilogue : HeadHalvesOf<Epilogue, S::kTokens> {
 protected:
  using T = typename Operands::Result;
  using Maps = typename Operands::Maps;
  using Results = typename Operands::template Results<Epilogue>;
  static constexpr int kTokens = S::kTokens, kBoxes = S::kBoxes,
                       kAtOnce = S::boxesAtOnce(Epilogue::out, Operands::scaled);

  __device__ CollectiveEpilogue(const Work& work, const Maps& maps, unsigned char* out, const ScaleOf<Epilogue>* scales)
      : epilogue_(work),
        work_(work),
        maps_(maps),
        group_(__shfl_sync(kFullMask, threadIdx.x / kWarpgroup, 0) - 1),
        in_group_(threadIdx.x % kWarpgroup),
        lane_(threadIdx.x % kWarpSize),
        out_(out + group_ * (S::outBytes(Epilogue::out) / kGroups)),
        scales_(scales) {}

  struct Pair {
    T x, y;
  };
  // What belongs to the two features that this thread has the sums of, neighbours or 8 apart; zeros beyond N.
  struct Features {
    Pair bias, residual_scale;
    float2 scale;
  };

  __device__ int warp() const { return in_group_ / kWarpSize; }

  // Whether this block stores the 16 tokens from 16 * box on.
  __device__ bool owns(const BlockCoord& coord, int box) const {
    return (box >> work_.owned_shift & (work_.tiling.parts - 1)) == coord.part;
  }

  __device__ Features loadFeatures(int feature, int token) {
    if constexpr (Epilogue::rotates) loadRotation(feature, token);
    const auto both = [&](auto value, const auto* values, const int& count) {
      constexpr int kStep = Results::kFeatureStep;
      if (values && feature < count) value.x = values[feature];
      if (values && feature + kStep < count) value.y = values[feature + kStep];
      return value;
    };
    const Pair zeros{fromFloat<T>(0.f), fromFloat<T>(0.f)};
    const int& scaled = Epilogue::norms_heads ? work_.rotary_features : work_.N;
    return {both(zeros, static_cast<const T*>(work_.bias), work_.N),
            both(zeros, static_cast<const T*>(work_.residual_scale), scaled),
            Operands::scaled ? both(float2{}, work_.scale, work_.N) : float2{}};
  }

  // Pairs are 8 features apart, as those of a thread; lane i takes the positions of the tokens i, i + 32, ...
  __device__ void loadRotation(int feature, int token) {
    is_pair_ = feature < work_.rotary_features;
    if (!is_pair_) return;
    frequency_ = work_.frequencies[feature / kPairBlock * 8 + lane_ / 4];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const int row = token + i * kWarpSize + lane_;
      positions_[i] = static_cast<float>(row < work_.T ? work_.positions[row] : 0);
    }
  }

  // For this thread's four tokens among the 16 of a box, a pair of each eight: what their rows are multiplied by and,
  // where residuals are normed, what is added then.
  using Scale = ScaleOf<Epilogue>;
  static constexpr bool kScalesAlone = std::is_same_v<Scale, float>;
  struct Scales {
    std::conditional_t<kScalesAlone, float2, float4> pairs[2];
  };
  __device__ Scales loadScales(int box) const {
    const Scale* const pair = scales_ + box * kBoxTokens + lane_ % 4 * 2;
    using Both = std::remove_reference_t<decltype(Scales{}.pairs[0])>;
    return {*reinterpret_cast<const Both*>(pair), *reinterpret_cast<const Both*>(pair + 8)};
  }

  // Sums of a box, normed if that is asked for, with bias: two tokens of two features, twice.
  __device__ void scaleAndBias(float (&value)[4][2], int box, const Features& features, const Scales& scales) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float (&sum)[4] = sums_[box * 2 + i / 2];
      const float bias = toFloat(i % 2 ? features.bias.y : features.bias.x);
      float scale[2] = {1.f, 1.f};
      if (epilogue_.norms_input) {
        const auto pair_scale = scales.pairs[i / 2];
        scale[0] = pair_scale.x;
        if constexpr (kScalesAlone)
          scale[1] = pair_scale.y;
        else
          scale[1] = pair_scale.z;
      }
      if (Operands::scaled) {
        const float feature_scale = i % 2 ? features.scale.y : features.scale.x;
        scale[0] *= feature_scale, scale[1] *= feature_scale;
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) value[i][k] = fmaf(scale[k], sum[i % 2 * 2 + k], bias);
    }
  }

  // Adds the bias to the sums of a tile that is a head or half of one, and leaves the factors by which
  // scaleAndRotateHead() multiplies its tokens' rows in memory that scales do not need. Sums of squares go through the
  // buffer of the next chunk, from which everything has left.
  __device__ void normHead(const Features& features) {
    static_assert(kScalesAlone && kGroups * kWarps * kTokens * sizeof(float) <= kAtOnce * boxBytes(Epilogue::out));
    float* const squares = reinterpret_cast<float*>(out_ + buffer_ * kAtOnce * boxBytes(Epilogue::out));
    // Without a bias, sums need not be scaled first: in their norm a row's scale matters for epsilon alone.
    const bool has_bias = work_.bias != nullptr;
    if (has_bias) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        float value[4][2];
        scaleAndBias(value, box, features, loadScales(box));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int k = 0; k < 2; ++k) sums_[box * 2 + i / 2][i % 2 * 2 + k] = value[i][k];
        }
      }
    }
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      float square[2][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float (&sum)[4] = sums_[box * 2 + half];
#pragma unroll
        for (int k = 0; k < 2; ++k) square[half][k] = fmaf(sum[2 + k], sum[2 + k], sum[k] * sum[k]);
      }
      const float sum = sumOfLanes(square, lane_);
      if ((lane_ & 4) == 0) {
        squares[warp() * kTokens + box * kBoxTokens + lane_ / 16 * 8 + lane_ % 4 * 2 + lane_ / 8 % 2] = sum;
      }
    }
    namedBarrier(kHeadBarrier, kGroups * kWarpgroup);
    const int token = group_ * kWarpgroup + in_group_;
    if (token < kTokens) {
      const float* const of_first = squares - group_ * (S::outBytes(Epilogue::out) / kGroups / sizeof(float));
      float sum = 0.f;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
          sum += of_first[group * (S::outBytes(Epilogue::out) / kGroups / sizeof(float)) + i * kTokens + token];
        }
      }
      float per_head = 1.f / kNormedHead;
      if constexpr (normsWideHeads<Epilogue>(kTokens)) {
        if (work_.wide_heads) {
          sum += this->otherHalf(headFactors() + kTokens, sum, token);
          per_head = 1.f / kWideHead;
        }
      }
      const float scale = has_bias ? 1.f : scales_[token];
      headFactors()[token] = scale * rsqrtf(scale * scale * (sum * per_head) + work_.head_epsilon);
    }
    if constexpr (normsWideHeads<Epilogue>(kTokens)) this->headIsDone();
    namedBarrier(kHeadBarrier, kGroups * kWarpgroup);
  }

  __device__ float* headFactors() const {
    return const_cast<float*>(reinterpret_cast<const float*>(scales_)) + kTokens;
  }

  // The position of pair i of a box: of token i / 2 * 8 + lane % 4 * 2 + i % 2.
  __device__ float positionOf(int box, int i) const {
    return __shfl_sync(kFullMask, positions_[box / 2], box % 2 * kBoxTokens + i / 2 * 8 + lane_ % 4 * 2 + i % 2);
  }
  // What pair i of a box is rotated by. Warp-collective.
  __device__ Rotation rotationOf(int box, int i) const { return rotationBy(positionOf(box, i) * frequency_); }

  // The results of a box of a head that normHead() has seen.
  __device__ void scaleAndRotateHead(float (&value)[4][2], int box, const Features& features) const {
    const float* const pair = headFactors() + box * kBoxTokens + lane_ % 4 * 2;
    const float gamma[2] = {toFloat(features.residual_scale.x), toFloat(features.residual_scale.y)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 factors = *reinterpret_cast<const float2*>(pair + i / 2 * 8);
      const float (&sum)[4] = sums_[box * 2 + i / 2];
      const int k = i % 2;
      const float factor = k ? factors.y : factors.x;
      Rotation rotation = rotationOf(box, i);
      rotation.cosine *= factor, rotation.sine *= factor;
      value[i / 2 * 2][k] = sum[k] * gamma[0];
      value[i / 2 * 2 + 1][k] = sum[2 + k] * gamma[1];
      rotatePair(value[i / 2 * 2][k], value[i / 2 * 2 + 1][k], rotation);
    }
  }

  // Rotates the pairs of a box.
  __device__ void rotate(float (&value)[4][2], int box) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) rotatePair(value[i / 2 * 2][i % 2], value[i / 2 * 2 + 1][i % 2], rotationOf(box, i));
  }

  __device__ bool storesBox(const BlockCoord& coord, int box) const {
    return !epilogue_.shares_tile || owns(coord, box);
  }

  // Called by one thread once all warps have written the boxes from `begin` on to `panel`.
  __device__ void storeBoxes(const CUtensorMap& map, const CUtensorMap& at_once, const BlockCoord& coord, int feature,
                             int token, unsigned char* panel, int box_bytes, int begin, int end) const {
    if (!epilogue_.shares_tile && end - begin == kAtOnce) {
      storeBox(at_once, sharedAddress(panel), feature, token + begin * kBoxTokens);
      return;
    }
#pragma unroll
    for (int box = begin; box < end; ++box) {
      if (!storesBox(coord, box)) continue;
      storeBox(map, sharedAddress(panel) + (box - begin) * box_bytes, feature, token + box * kBoxTokens);
    }
  }

  // Stores a tile to which nothing is added, through buffers of shared memory in which a transposing store makes
  // columns of features again.
  template <bool kRotates>
  __device__ void storeInChunks(const BlockCoord& coord, int feature, int token, const Features& features) {
    constexpr bool kNormsHeads = kRotates && Epilogue::norms_heads;
    Scales scales{};
    if constexpr (kNormsHeads) normHead(features);
    if (epilogue_.norms_input && !kNormsHeads) scales = loadScales(0);
#pragma unroll
    for (int begin = 0; begin < kBoxes; begin += kAtOnce) {
      const int end = min(begin + kAtOnce, kBoxes);
      unsigned char* const panel = out_ + buffer_ * kAtOnce * boxBytes(Epilogue::out);
#pragma unroll
      for (int box = begin; box < end; ++box) {
        if (!storesBox(coord, box)) continue;
        float value[4][2];
        if (epilogue_.norms_input && epilogue_.shares_tile) scales = loadScales(box);
        if constexpr (kNormsHeads) {
          scaleAndRotateHead(value, box, features);
        } else {
          scaleAndBias(value, box, features, scales);
        }
        if constexpr (kRotates && !kNormsHeads) rotate(value, box);
        const auto loadNext = [&] {
          if (kNormsHeads) return;
          if (epilogue_.norms_input && !epilogue_.shares_tile && box + 1 < kBoxes) scales = loadScales(box + 1);
        };
        Results::storeActivated(value, panel + (box - begin) * boxBytes(Epilogue::out), warp(), lane_, epilogue_, work_,
                                loadNext);
      }
      if (in_group_ == 0) waitStoresRead<0>();  // from the next chunk's buffer
      namedBarrier(group_ + 1, kWarpgroup);
      if (in_group_ == 0) {
        fenceAsyncProxy();  // once for all: each warp would wait there
        storeBoxes(maps_.y, maps_.y_at_once, coord, Epilogue::gated ? feature / 2 : feature, token, panel,
                   boxBytes(Epilogue::out), begin, end);
        commitStores();
      }
      if (++buffer_ == kBuffers) buffer_ = 0;
    }
  }

  // The epilogue of a tile to which nothing is added, with what belongs to its features. A vote says that all threads
  // of a warp go the same way, for the reason that Consumer::acquireOutStage has.
  __device__ void epilogueInChunks(const BlockCoord& coord, int feature, int token, const Features& features) {
    if constexpr (Epilogue::rotates) {
      if (__any_sync(kFullMask, is_pair_)) return storeInChunks<true>(coord, feature, token, features);
    }
    storeInChunks<false>(coord, feature, token, features);
  }

  const Epilogue epilogue_;
  const Work& work_;
  const Maps& maps_;
  const int group_, in_group_, lane_;
  unsigned char* out_;
  const ScaleOf<Epilogue>* const scales_;  // of the tile's tokens, where something is normed
  float sums_[kTokens / 8][4];

 private:
  static constexpr int kHeadBarrier = kGroups + 1;  // after one for each warpgroup
  int buffer_ = 0;                                  // for the next chunk
  static constexpr int kPositions = ceilDiv(kTokens, kWarpSize);
  // Where pairs are rotated: whether the features of this thread, and so of its warp, are; the angle per position; the
  // tokens' positions.
  bool is_pair_;
  float frequency_, positions_[kPositions];
};

}  // namespace padfree
