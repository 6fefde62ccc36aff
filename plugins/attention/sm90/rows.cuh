// SPDX-License-Identifier: Apache-2.0
// What a warpgroup of the Hopper attention kernels keeps in registers: 64 query rows, their scores, softmax and output.
#pragma once

#include <cmath>

#include "attention/sm90/products.cuh"
#include "attention/sm90/shape.cuh"
#include "common/device.cuh"
#include "common/ptx/e4m3.cuh"
#include "common/ptx/exp2.cuh"

namespace padfree {

// A value that is the same in the whole warp, in a uniform register, where addresses for the matrix unit must lie: the
// compiler knows that a reduction's result is uniform.
__device__ inline int uniform(int x) {
  return __reduce_or_sync(kFullMask, x);
}

// A number of keys as an argument that is known when compiling.
template <int kCount>
struct Keys {
  static constexpr int value = kCount;
};

// Transposes 4 x 4 values among four neighbouring lanes: lane q gets what the four held in element q.
__device__ inline void transposeQuad(unsigned (&v)[4], int lane) {
  const auto exchange = [&](unsigned& low, unsigned& high, int mask) {
    const bool upper = lane & mask;
    const unsigned other = __shfl_xor_sync(kFullMask, upper ? low : high, mask);
    (upper ? low : high) = other;
  };
  exchange(v[0], v[1], 1);
  exchange(v[2], v[3], 1);
  exchange(v[0], v[2], 2);
  exchange(v[1], v[3], 2);
}

// What is added to the scores of a step for their distances, in this case nothing. `offset`: see elementOffset.
struct NoBias {
  __device__ NoBias opaqueCopy() const { return {}; }
  __device__ float apply(int, float score) const { return score; }
};

// The distance from the row to the key of a lane's score i of block n is that of its score 0 of block 0 plus this.
__device__ constexpr int elementOffset(int n, int i) {
  return n * 8 + i % 2 - i / 2 * 8;
}

// Scores, online softmax and output of the two rows that a lane shares with its three neighbours.
template <typename S>
struct Sm90Rows {
  static constexpr int kBlocks = S::kKeys / 8;  // of 8 keys; a lane holds two of each row
  static constexpr int kFirstKeys =
      S::kPositionMode != PositionMode::kNone ? S::kKeys : 32;  // whose scores set the first reference
  static constexpr float kMinReference = -1e30f;                // of rows that see none of these
  static constexpr float kLargeSum = 16384.f;  // of a lane's exponentials in a step; fp16 ends at 65504

  // Rows lane / 4 (elements 0, 1) and lane / 4 + 8 (elements 2, 3) of the warp's 16.
  float scores[kBlocks][4];
  unsigned weights[kBlocks / 2][4];              // as operands of the next product
  float output[S::kPanels][S::kColumns / 8][4];  // to be cleared unless the first product overwrites it
  float reference[2], sum[2] = {};               // of the exponentials

  __device__ void clearOutput() {
#pragma unroll
    for (int i = 0; i < S::kD / 2; ++i) output[i / 32][i / 4 % 8][i % 4] = 0.f;
  }

  // Only the first `keys` of a step's first kCount keys count: the scores of the others become -infinity. The first
  // kSure count for certain.
  template <int kCount, int kSure = 0>
  __device__ void maskFrom(int keys, int lane) {
#pragma unroll
    for (int n = kSure / 8; n < kCount / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + lane % 4 * 2 + i % 2 >= keys) scores[n][i] = -INFINITY;
      }
    }
  }

  // Makes weights of the scores of the first kCount keys, where these are all keys; there is no output yet.
  template <int kCount>
  __device__ void computeAllWeights(float scale_log2) {
#pragma unroll
    for (int row = 0; row < 2; ++row) reference[row] = peakOf<kCount>(row);
    exponentiate<kCount>(scale_log2, sum);
  }

  // The same for one step of several. The reference of the exponentials only has to keep them in range: in the first
  // step it becomes the largest score of a row among some keys, and it moves only when exponentials grew too large for
  // it, which is looked at afterwards. So exponentials wait for no maximum. bias.apply(offset, score) is what a score
  // becomes.
  template <int kCount, typename Bias = NoBias>
  __device__ void computeWeights(float scale_log2, bool first, const Bias& bias = {}) {
    float step_sums[2];
    startStep<kCount>(scale_log2, first, bias, step_sums);
    endStep<kCount>(scale_log2, step_sums);
  }
  template <int kCount, typename Bias>
  __device__ void startStep(float scale_log2, bool first, const Bias& bias, float (&step_sums)[2]) {
    if (first) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        reference[row] = peakOf<(kCount < kFirstKeys ? kCount : kFirstKeys)>(row, bias);
        if constexpr (S::kPositionMode != PositionMode::kNone) reference[row] = fmaxf(reference[row], kMinReference);
      }
    }
    exponentiate<kCount>(scale_log2, step_sums, bias.opaqueCopy());
  }
  template <int kCount>
  __device__ void endStep(float scale_log2, float (&step_sums)[2]) {
    if (__any_sync(kFullMask, step_sums[0] > kLargeSum || step_sums[1] > kLargeSum)) {
      moveReferences<kCount>(step_sums, scale_log2);
      exponentiate<kCount>(scale_log2, step_sums);
    }
    sum[0] += step_sums[0];
    sum[1] += step_sums[1];
  }

  // The largest score of a row among its first kCount keys. Warp-collective.
  template <int kCount, typename Bias = NoBias>
  __device__ float peakOf(int row, const Bias& bias = {}) const {
    float peak[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) {
      peak[n % 2] = fmaxf(peak[n % 2], fmaxf(bias.apply(elementOffset(n, row * 2), scores[n][row * 2]),
                                             bias.apply(elementOffset(n, row * 2 + 1), scores[n][row * 2 + 1])));
    }
    peak[0] = fmaxf(peak[0], peak[1]);
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) peak[0] = fmaxf(peak[0], __shfl_xor_sync(kFullMask, peak[0], offset));
    return peak[0];
  }

  // Weights of the first kCount keys, and their sums over those of this lane. Scores take the bias in.
  template <int kCount, typename Bias = NoBias>
  __device__ void exponentiate(float scale_log2, float (&sums)[2], const Bias& bias = {}) {
    const float shift[2] = {reference[0] * scale_log2, reference[1] * scale_log2};
    sums[0] = sums[1] = 0.f;
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float (&pair)[4] = scores[n];
#pragma unroll
        for (int i = row * 2; i < row * 2 + 2; ++i) pair[i] = bias.apply(elementOffset(n, i), pair[i]);
        const float x = fmaf(pair[row * 2], scale_log2, -shift[row]);
        const float y = fmaf(pair[row * 2 + 1], scale_log2, -shift[row]);
        const float a = exp2Fast(x), b = exp2Fast(y);
        sums[row] += a + b;
        weights[n / 2][n % 2 * 2 + row] = packPair<typename S::T>(a, b);
      }
    }
  }

  // Moves the references of rows whose exponentials grew too large to the largest score. Every row decides for itself
  // (the four lanes that share it agree): a row's result must not depend on others. Warp-collective.
  template <int kCount>
  __device__ void moveReferences(const float (&step_sums)[2], float scale_log2) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = step_sums[row];
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, offset));
      const float peak = fmaxf(peakOf<kCount>(row), reference[row]);
      const bool moves = largest > kLargeSum;
      scaleOutput(row, moves ? exp2Fast((reference[row] - peak) * scale_log2) : 1.f);
      if (moves) reference[row] = peak;
    }
  }

  __device__ void scaleOutput(int row, float factor) {
    sum[row] *= factor;
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n) {
        output[panel][n][row * 2] *= factor;
        output[panel][n][row * 2 + 1] *= factor;
      }
    }
  }

  __device__ void addUpSums() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum[row] += __shfl_xor_sync(kFullMask, sum[row], 1);
      sum[row] += __shfl_xor_sync(kFullMask, sum[row], 2);
    }
  }

  // Where warpgroups share keys: one leaves references, sums and output in shared memory, a column per thread, and
  // another combines them with its own.
  __device__ void store(float* partial) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      partial[row * kWarpgroup] = reference[row];
      partial[(2 + row) * kWarpgroup] = sum[row];
    }
#pragma unroll
    for (int i = 0; i < S::kD / 2; ++i) partial[(4 + i) * kWarpgroup] = output[i / 32][i / 4 % 8][i % 4];
  }
  __device__ void combine(const float* partial, float scale_log2) {
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float theirs = partial[row * kWarpgroup], larger = fmaxf(reference[row], theirs);
      scaleOutput(row, exp2Fast((reference[row] - larger) * scale_log2));
      factor[row] = exp2Fast((theirs - larger) * scale_log2);
      reference[row] = larger;
      sum[row] += partial[(2 + row) * kWarpgroup] * factor[row];
    }
#pragma unroll
    for (int i = 0; i < S::kD / 2; ++i) {
      output[i / 32][i / 4 % 8][i % 4] += partial[(4 + i) * kWarpgroup] * factor[i / 2 % 2];
    }
  }
};

// Adds its bias to an operand's kTaskRows rows in shared memory, 16 bytes at a time. Threads of one warpgroup.
template <typename S>
__device__ void addBias(const AttentionOperand& operand, int D, unsigned char* rows, int head, int group) {
  using T = typename S::T;
  const T* bias = static_cast<const T*>(operand.bias) + head * operand.bias_head_stride;
  const int chunks = D / 8;
  for (int i = threadIdx.x % kWarpgroup; i < kTaskRows * chunks; i += kWarpgroup) {
    const int row = i / chunks, column = i % chunks * 8;
    T* chunk = reinterpret_cast<T*>(rows + column / S::kColumns * S::kQueryPanelBytes +
                                    S::panelOffset(row, column % S::kColumns / 8));
    float value[8];
    loadFloats(chunk, value);
    addFloats(bias + column, value);
    storeFloats(chunk, value);
  }
  fenceAsyncProxy();
  namedBarrier(kGroupBarrier + group, kWarpgroup);
}

template <typename S>
__device__ void addQueryBias(const AttentionParams& p, unsigned char* query, int head, int group) {
  addBias<S>(p.q, p.D, query, head, group);
}

// Results 8 * chunk to 8 * chunk + 7 of y become zeros.
__device__ inline void zeroChunk(const AttentionParams& p, int64_t chunk) {
  if (p.e4m3_factor > 0.f) {
    static_cast<uint2*>(p.y)[chunk] = uint2{};
  } else {
    static_cast<uint4*>(p.y)[chunk] = uint4{};
  }
}

// Rows of a head become zeros.
__device__ inline void zeroRows(const AttentionParams& p, int head, int token, int rows) {
  const int chunks = p.D / 8;
  const int64_t first = (static_cast<int64_t>(token) * p.H + head) * chunks;
  for (int i = threadIdx.x; i < rows * chunks; i += kWarpgroup) {
    zeroChunk(p, first + static_cast<int64_t>(i / chunks) * p.H * chunks + i % chunks);
  }
}

// Divides `numerator` by the sums, multiplies and writes the rows: four lanes write the 32 results of four blocks of a
// row at a time. pack(x, y) gives two results, store(to, packed) writes eight.
template <typename S, typename Result, typename Pack, typename Store>
__device__ void storeQuotients(const AttentionParams& p, const AttentionWorkItem& item, const Sm90Rows<S>& rows,
                               int lane, int warp_row, float numerator, const Pack& pack, const Store& store) {
  Result* const y =
      static_cast<Result*>(p.y) + (static_cast<int64_t>(item.token) * p.H + item.head) * p.D + lane % 4 * 8;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float factor = __fdividef(numerator, rows.sum[row]);
    const int item_row = warp_row + row * 8 + lane / 4;
#pragma unroll
    for (int block = 0; block < S::kD / 8; block += 4) {
      unsigned packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float (&value)[4] = rows.output[block / 8][block % 8 + i];
        packed[i] = pack(value[row * 2] * factor, value[row * 2 + 1] * factor);
      }
      transposeQuad(packed, lane);
      if (item_row < item.rows && (block + lane % 4) * 8 < p.D) {
        store(y + static_cast<int64_t>(item_row) * (p.H * p.D) + block * 8, packed);
      }
    }
  }
}

// Issues the scores of a step's keys. q: the descriptor of the queries; address: of the keys in shared memory.
template <typename S>
__device__ void issueKeys(Sm90Rows<S>& rows, unsigned q, unsigned address) {
  const unsigned k = panelDescriptor(address);
  wgmmaFence();
  multiplyKeys<S>(rows.scores, q, k);
  wgmmaCommit();
}

// Issues the weights of a step's first kCount keys times their values.
template <int kCount, typename S>
__device__ void issueValues(Sm90Rows<S>& rows, unsigned address) {
  const unsigned v = panelDescriptor(address);
  wgmmaFence();
  multiplyValues<S, 0, kCount / 16>(rows.output, rows.weights, v, true);
  wgmmaCommit();
}

// Divides by the sums and writes the rows, in e4m3 where it is asked for. The bias of V is added here: weights add up
// to the sum that is divided by.
template <typename S>
__device__ void storeRows(const AttentionParams& p, const AttentionWorkItem& item, Sm90Rows<S>& rows) {
  using T = typename S::T;
  const int lane = threadIdx.x % kWarpSize, warp_row = threadIdx.x % kWarpgroup / kWarpSize * 16;
  if (p.v.bias) {
    const T* bias = static_cast<const T*>(p.v.bias) + keyHead(p, item.head) * p.v.bias_head_stride;
#pragma unroll
    for (int i = 0; i < S::kD / 2; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (column < p.D) rows.output[i / 32][i / 4 % 8][i % 4] += toFloat(bias[column]) * rows.sum[i / 2 % 2];
    }
  }
  if (p.e4m3_factor > 0.f) {
    return storeQuotients<S, unsigned char>(
        p, item, rows, lane, warp_row, p.e4m3_factor, [](float x, float y) { return packE4m3(x, y); },
        [](unsigned char* to, const unsigned (&packed)[4]) {
          *reinterpret_cast<uint2*>(to) = uint2{packed[0] | packed[1] << 16, packed[2] | packed[3] << 16};
        });
  }
  storeQuotients<S, T>(
      p, item, rows, lane, warp_row, 1.f, [](float x, float y) { return packPair<T>(x, y); },
      [](T* to, const unsigned (&packed)[4]) { store16Bytes(to, packed); });
}

}  // namespace padfree
