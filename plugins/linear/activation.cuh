// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/mma.cuh"
#include "linear/kernel.h"

namespace padfree {

// x * Phi(x), Phi the normal distribution function, as max(x, 0) - |x| * 2^q(|x|): log2(Phi(-a)) is smooth, so a
// polynomial of degree 5 is enough for results that are rounded to fp16: its error is below 0.2 of the rounding's, down
// to where fp16 ends (-5.6); beyond, it falls on.
__device__ inline float gelu(float x) {
  const float a = fabsf(x);
  float q = -3.20384192e-04f;
  q = fmaf(q, a, 5.82577521e-03f);
  q = fmaf(q, a, -4.82306965e-02f);
  q = fmaf(q, a, -4.64133382e-01f);
  q = fmaf(q, a, -1.14916611f);
  q = fmaf(q, a, -1.00012290f);
  return fmaf(-a, exp2Fast(q), fmaxf(x, 0.f));
}

// x / (1 + e^-z)
__device__ inline float timesSigmoid(float x, float z) {
  return __fdividef(x, 1.f + exp2Fast(-kLog2E * z));
}

// The tanh form: 0.5 * (1 + tanh(u)) is the sigmoid of 2u.
__device__ inline float geluTanh(float x) {
  return timesSigmoid(x, 1.5957691216057308f * fmaf(0.044715f * x * x, x, x));
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
    case Activation::kNone:
      return x;
  }
  return x;
}

}  // namespace padfree
