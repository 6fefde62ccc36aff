// SPDX-License-Identifier: Apache-2.0
// Results of products whose threads have the sums of two neighbouring features: as pairs of e4m3 they fill the 16 bits
// that a transposing store moves, and as pairs of fp16 or bf16 whole words.
#pragma once

#include "common/panel.cuh"
#include "common/ptx/e4m3.cuh"
#include "common/ptx/mma.cuh"
#include "linear/activation.cuh"

namespace padfree {

// A thread's part of 16 tokens by 16 features: value[2 * half + f][t] is its feature f of token 8 * half + 2c + t,
// c = lane % 4; the features are 2r + f, r = lane / 4.
using PairedValues = float[4][2];

// Where the word of these two features of a token is, in a panel of 64 features of 2 bytes; a warp has 16 of them.
// Words of a warp lie in banks of their own.
__device__ inline unsigned* pairedPlace(unsigned char* panel, int half, int t, int warp, int lane) {
  const int token = half * 8 + lane % 4 * 2 + t, pair = lane / 4;
  return reinterpret_cast<unsigned*>(panel + panelOffset(token, warp * 2 + pair / 4) + pair % 4 * 4);
}

// packed[2 * half + t]
__device__ inline void loadPaired(unsigned (&packed)[4], unsigned char* panel, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] = *pairedPlace(panel, i / 2, i % 2, warp, lane);
}

template <typename T>
__device__ inline void storePaired(const PairedValues& value, unsigned char* panel, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, t = i % 2;
    *pairedPlace(panel, half, t, warp, lane) = packPair<T>(value[2 * half][t], value[2 * half + 1][t]);
  }
}

// As storeMatricesTransposed takes them: of each half both tokens' pairs.
__device__ inline void packPairedE4m3(unsigned (&packed)[2], const PairedValues& value, float factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float (&even)[2] = value[2 * half], (&odd)[2] = value[2 * half + 1];
    packed[half] = packE4m3(even[0] * factor, odd[0] * factor) | packE4m3(even[1] * factor, odd[1] * factor) << 16;
  }
}

// The same of activated values. Where GELU computes in fp16, the factor's product does too.
template <typename T>
__device__ inline void activatePairedE4m3(unsigned (&packed)[2], PairedValues& value, Activation activation,
                                          float factor) {
  if (std::is_same_v<T, half> && activation == Activation::kGelu) {
    const half2 factors = __float2half2_rn(factor);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned pair[2];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const unsigned result = geluPair<half>(value[2 * i][t], value[2 * i + 1][t]);
        const half2 scaled = __hmul2(reinterpret_cast<const half2&>(result), factors);
        pair[t] = packE4m3(reinterpret_cast<const unsigned&>(scaled));
      }
      packed[i] = pair[0] | pair[1] << 16;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) value[i / 2][i % 2] = activate(value[i / 2][i % 2], activation);
  packPairedE4m3(packed, value, factor);
}

// Stores a gate's results as e4m3 to rows of 32 features, 8 of them a warp's: value[2 * half] is u and value[2 * half +
// 1] is v of feature r = lane / 4. Neighbouring lanes of r exchange what they have, so that each stores pairs of
// neighbouring features: those with an even r of the first half's tokens, the others of the second's.
__device__ inline void storeGatedE4m3(const PairedValues& value, unsigned char* box, int warp, int lane,
                                      Activation activation, float factor) {
  float gate[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, t = i % 2;
    gate[half][t] = activate(value[2 * half][t], activation) * value[2 * half + 1][t] * factor;
  }
  const unsigned first = packE4m3(gate[0][0], gate[0][1]), second = packE4m3(gate[1][0], gate[1][1]);
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

}  // namespace padfree
