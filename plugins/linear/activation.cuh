// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "common/device.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/tanh.cuh"
#include "linear/launch.h"

namespace padfree {

// log2(Phi(-a)), Phi the normal distribution function, is near the polynomial with these coefficients of a^0, a^1, ...
constexpr float kTail0 = -1.00012290f, kTail1 = -1.14916611f, kTail2 = -4.64133382e-01f, kTail3 = -4.82306965e-02f,
                kTail4 = 5.82577521e-03f, kTail5 = -3.20384192e-04f;

// x * Phi(x) as max(x, 0) - |x| * 2^q(|x|): the logarithm is smooth, so a polynomial of degree 5 is enough for results
// that are rounded to fp16: its error is below 0.2 of the rounding's, down to where fp16 ends (-5.6); beyond, it falls
// on.
__device__ inline float gelu(float x) {
  const float a = fabsf(x);
  float q = kTail5;
  q = fmaf(q, a, kTail4);
  q = fmaf(q, a, kTail3);
  q = fmaf(q, a, kTail2);
  q = fmaf(q, a, kTail1);
  q = fmaf(q, a, kTail0);
  return fmaf(-a, exp2Fast(q), fmaxf(x, 0.f));
}

// The same of two numbers, rounded to T and packed. In fp16 they are rounded first and computed two at a time, which is
// as exact as computing with floats from numbers in fp16 (3.3e-4 of the results' norm for normal numbers, where
// rounding the results alone is 2.1e-4): an instruction for every element of a tile costs a GEMM 1 % of its time.
template <typename T>
__device__ unsigned geluPair(float x, float y) {
  return packPair<T>(gelu(x), gelu(y));
}
template <>
__device__ inline unsigned geluPair<half>(float x, float y) {
  const half2 both = __floats2half2_rn(x, y), a = __habs2(both);
  half2 q = __float2half2_rn(kTail5);
  for (const float coefficient : {kTail4, kTail3, kTail2, kTail1, kTail0}) {
    q = __hfma2(q, a, __float2half2_rn(coefficient));
  }
  const half2 power = exp2Fast(q), positive = __hmax2(both, __float2half2_rn(0.f));
  const half2 result = __hfma2(__hneg2(a), power, positive);
  return reinterpret_cast<const unsigned&>(result);
}

// GELU for results that are rounded to e4m3, whose rounding takes 2.7e-2 of their norm: x * Phi(x) with 1/2 + x P(x^2),
// kept between 0 and 1, instead of Phi(x). In fp16 its error is below 1e-3 (0.1 + |x|), which adds less than a
// thousandth to that of rounding. It does without the special-function unit, which the other form waits for. Numbers of
// fp16.
constexpr float kPhi1 = 3.9697265625e-01f, kPhi3 = -6.2469482421875e-02f, kPhi5 = 7.51495361328125e-03f,
                kPhi7 = -5.102157592773438e-04f, kPhi9 = 1.4424324035644531e-05f;

__device__ inline half2 geluCoarse(half2 x) {
  const half2 square = __hmul2(x, x);
  half2 p = __float2half2_rn(kPhi9);
  for (const float coefficient : {kPhi7, kPhi5, kPhi3, kPhi1}) p = __hfma2(p, square, __float2half2_rn(coefficient));
  return __hmul2(x, __hfma2_sat(p, x, __float2half2_rn(0.5f)));
}

__device__ inline float sigmoid(float x) {
  return __fdividef(1.f, 1.f + exp2Fast(-kLog2E * x));
}

// x / (1 + e^-z) for results that are rounded to bf16, by one number of the special-function unit instead of two.
__device__ inline float timesSigmoidFast(float x, float z) {
  const float half = 0.5f * x;
  return fmaf(half, tanhFast(0.5f * z), half);
}

// x / (1 + e^-z)
__device__ inline float timesSigmoid(float x, float z) {
  return __fdividef(x, 1.f + exp2Fast(-kLog2E * z));
}

// The tanh form: 0.5 * (1 + tanh(u)) is the sigmoid of 2u.
__device__ inline float twiceTanhArgument(float x) {
  return 1.5957691216057308f * fmaf(0.044715f * x * x, x, x);
}
__device__ inline float geluTanh(float x) {
  return timesSigmoid(x, twiceTanhArgument(x));
}

__device__ inline float activate(float x, Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return geluTanh(x);
    case Activation::kRelu:
      return fmaxf(x, 0.f);
    case Activation::kSilu:
      return timesSigmoid(x, x);
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kNone:
      return x;
  }
  return x;
}

// Activates several numbers, where the activation may be known only at run time: the branches are taken once for all,
// and those that multiply by a sigmoid share it. An epilogue with a switch for every number has three times as much
// code, which its tiles wait for.
template <int kPairs>
__device__ inline void activate(float (&values)[kPairs][2], Activation activation) {
  const auto forEach = [&](auto function) {
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) values[i / 2][i % 2] = function(values[i / 2][i % 2]);
  };
  if (activation == Activation::kNone) return;
  if (activation == Activation::kRelu) return forEach([](float x) { return fmaxf(x, 0.f); });
  if (activation == Activation::kGelu) return forEach([](float x) { return gelu(x); });
  forEach([activation](float x) {
    return timesSigmoid(activation == Activation::kSigmoid ? 1.f : x,
                        activation == Activation::kGeluTanh ? twiceTanhArgument(x) : x);
  });
}

// The same for pairs, rounded to T and packed.
template <typename T, int kPairs>
__device__ inline void activatePairs(unsigned (&packed)[kPairs], float (&values)[kPairs][2], Activation activation) {
  const bool is_gelu = activation == Activation::kGelu;
  if (!is_gelu) activate(values, activation);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    packed[i] = is_gelu ? geluPair<T>(values[i][0], values[i][1]) : packPair<T>(values[i][0], values[i][1]);
  }
}

// activation(u) * v of two numbers each, rounded to T and packed. Where GELU computes in fp16 v is rounded too.
template <typename T>
__device__ inline unsigned gatePair(const float (&u)[2], const float (&v)[2], Activation activation) {
  if (std::is_same_v<T, half> && activation == Activation::kGelu) {
    const unsigned gate = geluPair<half>(u[0], u[1]);
    const half2 result = __hmul2(reinterpret_cast<const half2&>(gate), __floats2half2_rn(v[0], v[1]));
    return reinterpret_cast<const unsigned&>(result);
  }
  float gate[1][2] = {{u[0], u[1]}};
  if (std::is_same_v<T, __nv_bfloat16> && activation == Activation::kSilu) {
    gate[0][0] = timesSigmoidFast(u[0], u[0]);
    gate[0][1] = timesSigmoidFast(u[1], u[1]);
  } else if (std::is_same_v<T, __nv_bfloat16> && activation == Activation::kGeluTanh) {
    gate[0][0] = timesSigmoidFast(u[0], twiceTanhArgument(u[0]));
    gate[0][1] = timesSigmoidFast(u[1], twiceTanhArgument(u[1]));
  } else {
    activate(gate, activation);
  }
  return packPair<T>(gate[0][0] * v[0], gate[0][1] * v[1]);
}

}  // namespace padfree
