// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/mma.cuh"

namespace padfree {

constexpr float kLog2E = 1.4426950408889634f;

// x * Phi(x), Phi the normal distribution function, as max(x, 0) - |x| * 2^q(|x|): log2(Phi(-a)) is smooth, so a
// polynomial of degree 7 gives gelu to 3e-7 absolutely and, down to -5.5, to 5e-4 of its value; beyond, it falls on.
__device__ inline float gelu(float x) {
  const float a = fabsf(x);
  float q = -1.22707024e-06f;
  q = fmaf(q, a, 5.15404208e-05f);
  q = fmaf(q, a, -8.68534669e-04f);
  q = fmaf(q, a, 8.32976401e-03f);
  q = fmaf(q, a, -5.37189990e-02f);
  q = fmaf(q, a, -4.58595425e-01f);
  q = fmaf(q, a, -1.15123940f);
  q = fmaf(q, a, -9.99991715e-01f);
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

}  // namespace padfree
