// SPDX-License-Identifier: Apache-2.0
// How results of GEMMs in e4m3 get to the memory that they leave from. Where they are e4m3, a thread has the sums of
// two neighbouring features ("paired"): together they fill the 16 bits that a transposing store moves, and in fp16 or
// bf16 a whole word.
#pragma once

#include "common/ptx/e4m3.cuh"
#include "linear/sm90/results.cuh"

namespace padfree {

// Where the word of these two features of a token is, in a panel of 64 features of 2 bytes; a warp has 16 of them.
// Words of a warp lie in banks of their own.
__device__ inline unsigned* pairedAddress(unsigned char* panel, int half, int t, int warp, int lane) {
  const int token = half * 8 + lane % 4 * 2 + t, pair = lane / 4;
  return reinterpret_cast<unsigned*>(panel + panelOffset(token, warp * 2 + pair / 4) + pair % 4 * 4);
}

// packed[2 * half + t]
__device__ inline void loadPaired(unsigned (&packed)[4], unsigned char* panel, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] = *pairedAddress(panel, i / 2, i % 2, warp, lane);
}

template <typename T>
__device__ inline void storePaired(const BoxValues& value, unsigned char* panel, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, t = i % 2;
    *pairedAddress(panel, half, t, warp, lane) = packPair<T>(value[2 * half][t], value[2 * half + 1][t]);
  }
}

// As storeMatricesTransposed takes them: of each half both tokens' pairs.
__device__ inline void packPairedE4m3(unsigned (&packed)[2], const BoxValues& value, float factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float (&even)[2] = value[2 * half], (&odd)[2] = value[2 * half + 1];
    packed[half] = packE4m3(even[0] * factor, odd[0] * factor) | packE4m3(even[1] * factor, odd[1] * factor) << 16;
  }
}

// The same of activated values. Where GELU computes in fp16, the factor's product does too.
template <typename T>
__device__ inline void activatePairedE4m3(unsigned (&packed)[2], BoxValues& value, Activation activation,
                                          float factor) {
  if (std::is_same_v<T, half> && activation == Activation::kGelu) {
    const half2 factors = __float2half2_rn(factor);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned pair[2];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const half2 result = geluCoarse(__floats2half2_rn(value[2 * i][t], value[2 * i + 1][t]));
        const half2 scaled = __hmul2(result, factors);
        pair[t] = packE4m3(reinterpret_cast<const unsigned&>(scaled));
      }
      packed[i] = pair[0] | pair[1] << 16;
    }
    return;
  }
  activate(value, activation);
  packPairedE4m3(packed, value, factor);
}

// activation(u) * v of two numbers each. Where GELU computes in fp16, the products stay in float32.
template <typename T>
__device__ inline unsigned gatePairE4m3(const float (&u)[2], const float (&v)[2], Activation activation, float factor) {
  float gate[1][2] = {{u[0], u[1]}};
  if (std::is_same_v<T, half> && activation == Activation::kGelu) {
    const float2 gelus = __half22float2(geluCoarse(__floats2half2_rn(u[0], u[1])));
    gate[0][0] = gelus.x;
    gate[0][1] = gelus.y;
  } else {
    activate(gate, activation);
  }
  return packE4m3(gate[0][0] * v[0] * factor, gate[0][1] * v[1] * factor);
}

// Stores a gate's results as e4m3 to rows of 32 features, 8 of them a warp's: value[2 * half] is u and value[2 * half +
// 1] is v of feature r = lane / 4. Neighbouring lanes of r exchange what they have, so that each stores pairs of
// neighbouring features: those with an even r of the first half's tokens, the others of the second's.
template <typename T>
__device__ inline void storeGatedE4m3(const BoxValues& value, unsigned char* box, int warp, int lane,
                                      Activation activation, float factor) {
  const unsigned first = gatePairE4m3<T>(value[0], value[1], activation, factor);
  const unsigned second = gatePairE4m3<T>(value[2], value[3], activation, factor);
  const bool is_odd = lane / 4 % 2 == 1;
  const unsigned theirs = __shfl_xor_sync(kFullMask, is_odd ? first : second, 4);
  const unsigned even = is_odd ? theirs : first, odd = is_odd ? second : theirs;  // two tokens of a feature each
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int token = is_odd * 8 + lane % 4 * 2 + t;
    const unsigned pair = (even >> 8 * t & 0xff) | (odd >> 8 * t & 0xff) << 8;
    *reinterpret_cast<uint16_t*>(box + token * 32 + warp * 8 + lane / 8 * 2) = static_cast<uint16_t>(pair);
  }
}

template <typename T, typename Epilogue>
struct E4m3Results : HalfResults<T, Epilogue> {
  using Half = HalfResults<T, Epilogue>;
  static constexpr int kFeatureStep = Epilogue::paired ? 1 : Half::kFeatureStep;
  static __device__ int firstFeature(int lane) { return Epilogue::paired ? lane / 4 * 2 : Half::firstFeature(lane); }

  template <typename LoadNext>
  static __device__ void storeActivated(BoxValues& value, unsigned char* panel, int warp, int lane,
                                        const Epilogue& epilogue, const Work& work, LoadNext loadNext) {
    if constexpr (Epilogue::out == Out::kThinChunks) {
      loadNext();
      storeGatedE4m3<T>(value, panel, warp, lane, epilogue.activation, work.per_y_scale);
    } else if constexpr (Epilogue::paired) {
      unsigned packed[2];
      activatePairedE4m3<T>(packed, value, epilogue.activation, work.per_y_scale);
      loadNext();
      storeMatricesTransposed(packed, panel + narrowPanelOffset(lane % 16, warp));
    } else {
      Half::storeActivated(value, panel, warp, lane, epilogue, work, loadNext);
    }
  }

  static __device__ void loadResidual(unsigned (&packed)[4], unsigned char* panel, int warp, int lane) {
    loadPaired(packed, panel, warp, lane);
  }
  // The residuals of two tokens of a feature, which lie beside those of its neighbour.
  static __device__ float2 residualOf(const unsigned (&packed)[4], int i) {
    const float2 first = unpackPair<T>(packed[i / 2 * 2]), second = unpackPair<T>(packed[i / 2 * 2 + 1]);
    return i % 2 ? float2{first.y, second.y} : float2{first.x, second.x};
  }

  // e4m3 stands after all boxes of the tile.
  template <int kTokens>
  static __device__ void store(const BoxValues& value, unsigned char* out, int box, int warp, int lane,
                               const Epilogue& epilogue, const Work& work) {
    if (epilogue.writes_y) storePaired<T>(value, out + box * kBoxBytes, warp, lane);
    if (!epilogue.writes_e4m3) return;
    unsigned packed[2];
    packPairedE4m3(packed, value, work.per_y_scale);
    unsigned char* const panel = out + kTokens * kPanelRowBytes + box * (kBoxBytes / 2);
    storeMatricesTransposed(packed, panel + narrowPanelOffset(lane % 16, warp));
  }
  template <int kTokens, typename Visit>
  static __device__ void forEachMap(const E4m3Maps& maps, unsigned char* out, const Epilogue& epilogue, Visit visit) {
    if (epilogue.writes_y) visit(maps.y, maps.y_at_once, out, kBoxBytes);
    if (!epilogue.writes_e4m3) return;
    visit(maps.y_e4m3, maps.y_e4m3_at_once, out + kTokens * kPanelRowBytes, kBoxBytes / 2);
  }
};

}  // namespace padfree
