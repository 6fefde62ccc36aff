// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "attention/task.h"
#include "common/types.h"

namespace padfree {

// One of Q, K, V: element (t, h, d) lies at data[t * token_stride + h * head_stride + d].
struct AttentionOperand {
  const void* data;
  const void* bias;      // element (h, d) at bias[h * bias_head_stride + d], or null
  int64_t token_stride;  // elements; 16-byte aligned rows: strides % 8 == 0 for 2-byte types
  int64_t head_stride;   // elements
  int64_t bias_head_stride;
};

// What is added to a score (i, j) of head h, in natural units; i and j count inside the sequence.
enum class AttentionBias : int32_t {
  kNone = 0,
  kSlope = 1,     // -slopes[h] * |j - i|
  kDistance = 2,  // distance_bias[h][t], t = clamp(j - i, -bias_range, bias_range) + bias_range
  // scale * (q_i . k_position[t] + k_j . q_position[t]), q_i and k_j with their biases; kv_heads == H, no window
  kDisentangled = 3,
};

struct AttentionParams {
  AttentionOperand q, k, v;
  const int* cu_seqlens;       // [B+1], starts at 0, never falls; tokens from cu_seqlens[B] on are filler
  const AttentionTask* tasks;  // [num_tasks+1] or null: PadfreeSchedule's list for the same sequences and H
  int num_tasks;               // at most
  void* y;                     // [T, H*D]; filler rows become zeros
  int T, B, H;
  int D;            // head size, at most kMaxHeadSize, a multiple of 8
  int max_seq_len;  // longest sequence the caller expects, 0 if unknown: a hint: longer ones are computed as well
  float scale;
  DataType type;                  // of q, k, v, biases and y; softmax and accumulation are fp32
  int kv_heads;                   // of K and V, H % kv_heads == 0: head h reads theirs number h / (H / kv_heads)
  int window_left, window_right;  // row i sees keys i - window_left to i + window_right; -1: open
  AttentionBias bias;
  int bias_range;              // with kDistance and kDisentangled
  const float* slopes;         // [H], with kSlope
  const float* distance_bias;  // [H, 2 * bias_range + 1], with kDistance
  // [2 * bias_range + 1, H*D] of the type, with kDisentangled; either may be null
  const void *k_position, *q_position;
  float e4m3_factor;  // where above 0, y is e4m3 and gets results times it; not of kFloat32
  // Whether another kernel came between the one that made cu_seqlens and tasks and this one, or the host made them
  // before it: they are read while the kernel ahead still runs (dependent_launch.cuh, rule 3).
  bool early_lengths = false;
  // [B] or null: numbers of sequences whose keys come before those of each, and count as tokens before its own;
  // whatever is not the number of another sequence means none. The prefix of a prefix does not matter. window_right is
  // 0 then.
  const int* prefix = nullptr;
  // The kernels on mma.sync, which set them themselves: query tiles of longer sequences come first (query_tiles.cuh),
  // or those of a sequence next to each other (mma_tiles.cuh).
  bool longest_first = false, in_order = false;
  int turned_tile = 0x7fffffff, turned_sum = 0;  // theirs as well (turnTile in mma_tiles.cuh): of no tile
};

constexpr int kMaxHeadSize = 256, kMaxDisentangledHeadSize = 128;

// An upper bound for the blocks of a launch, which must not exceed kMaxGridX: a block takes at least kTaskRows query
// rows of one head and sequence, except for fp32, where heads have a dimension of the grid to themselves.
constexpr int64_t attentionBlocks(int64_t T, int64_t B, int64_t H) {
  return (T / kTaskRows + B + 1) * H;
}

// softmax(Q K^T * scale + bias) V inside each sequence and window. Nothing of size S*S leaves the chip, no host copy of
// lengths.
cudaError_t launchAttention(const AttentionParams& params, cudaStream_t stream);

}  // namespace padfree
