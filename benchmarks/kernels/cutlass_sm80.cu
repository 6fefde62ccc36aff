// SPDX-License-Identifier: Apache-2.0
// What benchmarks/kernels/linear_mma.py times beside padfree's kernels: CUTLASS's tiles for sm_80, with the bias as a
// matrix whose rows are all the same and with GELU by erf where padfree has it, and mma.sync alone.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/epilogue/thread/linear_combination_gelu.h>
#include <cutlass/gemm/device/gemm.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

#include <type_traits>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Half = cutlass::half_t;
using RowMajor = cutlass::layout::RowMajor;

struct Operands {
  const void *x, *weight, *bias;
  void* y;
  int T, K, N;
};

template <bool kGelu>
using Epilogue = std::conditional_t<kGelu, cutlass::epilogue::thread::LinearCombinationGELU<Half, 8, float, float>,
                                    cutlass::epilogue::thread::LinearCombination<Half, 8, float, float>>;

// A tile of kTokens, kFeatures and kDepth, divided among warps of kWarpTokens and kWarpFeatures.
template <bool kGelu, int kTokens, int kFeatures, int kDepth, int kWarpTokens, int kWarpFeatures, int kStages>
int run(const Operands& p, cudaStream_t stream) {
  using Gemm =
      cutlass::gemm::device::Gemm<Half, RowMajor, Half, RowMajor, Half, RowMajor, float, cutlass::arch::OpClassTensorOp,
                                  cutlass::arch::Sm80, cutlass::gemm::GemmShape<kTokens, kFeatures, kDepth>,
                                  cutlass::gemm::GemmShape<kWarpTokens, kWarpFeatures, kDepth>,
                                  cutlass::gemm::GemmShape<16, 8, 16>, Epilogue<kGelu>,
                                  cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, kStages>;
  Gemm gemm;
  const typename Gemm::Arguments arguments(
      {p.T, p.N, p.K}, {static_cast<const Half*>(p.x), p.K}, {static_cast<const Half*>(p.weight), p.N},
      {static_cast<const Half*>(p.bias), 0}, {static_cast<Half*>(p.y), p.N}, {1.f, 1.f});
  const cutlass::Status status = gemm.initialize(arguments, nullptr, stream);
  return static_cast<int>(status == cutlass::Status::kSuccess ? gemm.run(stream) : status);
}

template <bool kGelu>
int runTile(int tile, const Operands& p, cudaStream_t stream) {
  switch (tile) {
    case 0:
      return run<kGelu, 128, 256, 32, 64, 64, 3>(p, stream);
    case 1:
      return run<kGelu, 256, 128, 32, 64, 64, 3>(p, stream);
    case 2:
      return run<kGelu, 128, 128, 32, 64, 64, 3>(p, stream);
    case 3:
      return run<kGelu, 128, 128, 64, 64, 64, 3>(p, stream);
    case 4:
      return run<kGelu, 256, 128, 64, 64, 64, 3>(p, stream);
    case 5:
      return run<kGelu, 64, 128, 32, 32, 64, 4>(p, stream);
    case 6:
      return run<kGelu, 128, 64, 32, 64, 32, 4>(p, stream);
    case 7:
      return run<kGelu, 64, 64, 64, 32, 32, 5>(p, stream);
    case 8:
      return run<kGelu, 128, 256, 64, 64, 64, 3>(p, stream);
  }
  return -1;
}

#define MULTIPLY_WITH_SUMS_IN_FP32(type)                                              \
  auto& f = reinterpret_cast<float (&)[4]>(sum);                                      \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

// One instruction 16 times, with sums of their own.
template <int kKind>
__global__ void multiply(float* nowhere, int loops) {
  constexpr int kProducts = 16;
  unsigned c[kProducts][4] = {};
  const unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {threadIdx.x * 3, 5};
  for (int i = 0; i < loops; ++i) {
#pragma unroll
    for (auto& sum : c) {
      if constexpr (kKind == 0) {
        MULTIPLY_WITH_SUMS_IN_FP32("f16");
      } else if constexpr (kKind == 3) {
        MULTIPLY_WITH_SUMS_IN_FP32("bf16");
      } else if constexpr (kKind == 1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                     : "+r"(sum[0]), "+r"(sum[1])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
      } else {
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
      }
    }
  }
  unsigned total = 0;
  for (const auto& sum : c) {
    for (const unsigned part : sum) total += part;
  }
  if (total == 12345) *nowhere = total;  // so that the sums are computed
}

}  // namespace

EXPORT int cutlassLinear(int tile, int gelu, const void* x, const void* weight, const void* bias, void* y, int T, int K,
                         int N, cudaStream_t stream) {
  const Operands p{x, weight, bias, y, T, K, N};
  return gelu ? runTile<true>(tile, p, stream) : runTile<false>(tile, p, stream);
}

// kind: fp16 with sums in fp32, the same with sums in fp16, s8, bf16.
EXPORT int mmaPeak(int kind, int blocks, int loops, float* nowhere, cudaStream_t stream) {
  constexpr int kThreads = 256;
  if (kind == 0) multiply<0><<<blocks, kThreads, 0, stream>>>(nowhere, loops);
  if (kind == 1) multiply<1><<<blocks, kThreads, 0, stream>>>(nowhere, loops);
  if (kind == 2) multiply<2><<<blocks, kThreads, 0, stream>>>(nowhere, loops);
  if (kind == 3) multiply<3><<<blocks, kThreads, 0, stream>>>(nowhere, loops);
  return cudaGetLastError();
}
