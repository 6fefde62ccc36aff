// SPDX-License-Identifier: Apache-2.0
// c[64 x n] (+)= a[16 x 64]^T b[n x 16]^T for every width n of a tile, both operands in shared memory: `a` holds rows
// along the reduction's orthogonal (features), `b` rows along the reduction (tokens). Accumulators as by mma.sync: 8
// columns an entry of c.
#pragma once

#include "common/hopper.cuh"

namespace padfree {

template <typename T, int kColumns>
__device__ void multiplyTile(float (&c)[kColumns / 8][4], uint64_t a, uint64_t b, bool accumulate);

// Eight accumulators at a time: their places in the instruction's text and in its operand list.
#define PADFREE_PLACES_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PADFREE_PLACES_2 PADFREE_PLACES_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PADFREE_PLACES_3 PADFREE_PLACES_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define PADFREE_PLACES_4 PADFREE_PLACES_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define PADFREE_PLACES_5 PADFREE_PLACES_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define PADFREE_PLACES_6 PADFREE_PLACES_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define PADFREE_PLACES_7 PADFREE_PLACES_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define PADFREE_PLACES_8 PADFREE_PLACES_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define PADFREE_PLACES_9 PADFREE_PLACES_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define PADFREE_PLACES_10 PADFREE_PLACES_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define PADFREE_PLACES_11 PADFREE_PLACES_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define PADFREE_PLACES_12 PADFREE_PLACES_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define PADFREE_PLACES_13 PADFREE_PLACES_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define PADFREE_PLACES_14 PADFREE_PLACES_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define PADFREE_PLACES_15 PADFREE_PLACES_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define PADFREE_PLACES_16 PADFREE_PLACES_15 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define PADFREE_SLOTS(c, i)                                                                                            \
  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]), "+f"(c[i + 1][0]), "+f"(c[i + 1][1]), "+f"(c[i + 1][2]), \
      "+f"(c[i + 1][3])
#define PADFREE_SLOTS_1(c) PADFREE_SLOTS(c, 0)
#define PADFREE_SLOTS_2(c) PADFREE_SLOTS_1(c), PADFREE_SLOTS(c, 2)
#define PADFREE_SLOTS_3(c) PADFREE_SLOTS_2(c), PADFREE_SLOTS(c, 4)
#define PADFREE_SLOTS_4(c) PADFREE_SLOTS_3(c), PADFREE_SLOTS(c, 6)
#define PADFREE_SLOTS_5(c) PADFREE_SLOTS_4(c), PADFREE_SLOTS(c, 8)
#define PADFREE_SLOTS_6(c) PADFREE_SLOTS_5(c), PADFREE_SLOTS(c, 10)
#define PADFREE_SLOTS_7(c) PADFREE_SLOTS_6(c), PADFREE_SLOTS(c, 12)
#define PADFREE_SLOTS_8(c) PADFREE_SLOTS_7(c), PADFREE_SLOTS(c, 14)
#define PADFREE_SLOTS_9(c) PADFREE_SLOTS_8(c), PADFREE_SLOTS(c, 16)
#define PADFREE_SLOTS_10(c) PADFREE_SLOTS_9(c), PADFREE_SLOTS(c, 18)
#define PADFREE_SLOTS_11(c) PADFREE_SLOTS_10(c), PADFREE_SLOTS(c, 20)
#define PADFREE_SLOTS_12(c) PADFREE_SLOTS_11(c), PADFREE_SLOTS(c, 22)
#define PADFREE_SLOTS_13(c) PADFREE_SLOTS_12(c), PADFREE_SLOTS(c, 24)
#define PADFREE_SLOTS_14(c) PADFREE_SLOTS_13(c), PADFREE_SLOTS(c, 26)
#define PADFREE_SLOTS_15(c) PADFREE_SLOTS_14(c), PADFREE_SLOTS(c, 28)
#define PADFREE_SLOTS_16(c) PADFREE_SLOTS_15(c), PADFREE_SLOTS(c, 30)

#define PADFREE_DEFINE_MULTIPLY_AS(TYPE, NAME, COLUMNS, GROUPS, A, B, P)                                            \
  template <>                                                                                                       \
  __device__ inline void multiplyTile<TYPE, COLUMNS>(float (&c)[COLUMNS / 8][4], uint64_t a, uint64_t b,            \
                                                     bool accumulate) {                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                                              \
                 ", 0;\n"                                                                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" PADFREE_PLACES_##GROUPS \
                 "}, " A ", " B ", p, 1, 1, 1, 0;\n}\n"                                                             \
                 : PADFREE_SLOTS_##GROUPS(c)                                                                        \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                              \
  }
// COLUMNS = 16 * GROUPS; A, B and P: the places behind the 8 * GROUPS accumulators.
#define PADFREE_DEFINE_MULTIPLY(COLUMNS, GROUPS, A, B, P)           \
  PADFREE_DEFINE_MULTIPLY_AS(half, "f16", COLUMNS, GROUPS, A, B, P) \
  PADFREE_DEFINE_MULTIPLY_AS(__nv_bfloat16, "bf16", COLUMNS, GROUPS, A, B, P)

PADFREE_DEFINE_MULTIPLY(16, 1, "%8", "%9", "%10")
PADFREE_DEFINE_MULTIPLY(32, 2, "%16", "%17", "%18")
PADFREE_DEFINE_MULTIPLY(48, 3, "%24", "%25", "%26")
PADFREE_DEFINE_MULTIPLY(64, 4, "%32", "%33", "%34")
PADFREE_DEFINE_MULTIPLY(80, 5, "%40", "%41", "%42")
PADFREE_DEFINE_MULTIPLY(96, 6, "%48", "%49", "%50")
PADFREE_DEFINE_MULTIPLY(112, 7, "%56", "%57", "%58")
PADFREE_DEFINE_MULTIPLY(128, 8, "%64", "%65", "%66")
PADFREE_DEFINE_MULTIPLY(144, 9, "%72", "%73", "%74")
PADFREE_DEFINE_MULTIPLY(160, 10, "%80", "%81", "%82")
PADFREE_DEFINE_MULTIPLY(176, 11, "%88", "%89", "%90")
PADFREE_DEFINE_MULTIPLY(192, 12, "%96", "%97", "%98")
PADFREE_DEFINE_MULTIPLY(208, 13, "%104", "%105", "%106")
PADFREE_DEFINE_MULTIPLY(224, 14, "%112", "%113", "%114")
PADFREE_DEFINE_MULTIPLY(240, 15, "%120", "%121", "%122")
PADFREE_DEFINE_MULTIPLY(256, 16, "%128", "%129", "%130")

#undef PADFREE_DEFINE_MULTIPLY
#undef PADFREE_DEFINE_MULTIPLY_AS
#undef PADFREE_SLOTS_16
#undef PADFREE_SLOTS_15
#undef PADFREE_SLOTS_14
#undef PADFREE_SLOTS_13
#undef PADFREE_SLOTS_12
#undef PADFREE_SLOTS_11
#undef PADFREE_SLOTS_10
#undef PADFREE_SLOTS_9
#undef PADFREE_SLOTS_8
#undef PADFREE_SLOTS_7
#undef PADFREE_SLOTS_6
#undef PADFREE_SLOTS_5
#undef PADFREE_SLOTS_4
#undef PADFREE_SLOTS_3
#undef PADFREE_SLOTS_2
#undef PADFREE_SLOTS_1
#undef PADFREE_SLOTS
#undef PADFREE_PLACES_16
#undef PADFREE_PLACES_15
#undef PADFREE_PLACES_14
#undef PADFREE_PLACES_13
#undef PADFREE_PLACES_12
#undef PADFREE_PLACES_11
#undef PADFREE_PLACES_10
#undef PADFREE_PLACES_9
#undef PADFREE_PLACES_8
#undef PADFREE_PLACES_7
#undef PADFREE_PLACES_6
#undef PADFREE_PLACES_5
#undef PADFREE_PLACES_4
#undef PADFREE_PLACES_3
#undef PADFREE_PLACES_2
#undef PADFREE_PLACES_1

}  // namespace padfree
