// SPDX-License-Identifier: Apache-2.0
// The launchers as C functions, for ctypes. Built with -DPADFREE_KERNEL_TESTS=ON; see tests/support/launchers.py.
#include <algorithm>

#include "attention/kernels.h"
#include "common/e4m3.h"
#include "embedding/launch.h"
#include "index/launch.h"
#include "layer_norm/launch.h"
#include "linear/cost_model.h"
#include "linear/measure.h"
#include "linear/mma/menu.h"
#include "linear/tiling.h"
#include "pack/launch.h"
#include "pool/launch.h"
#include "post_norm/launch.h"
#include "qk_norm_rotary/launch.h"
#include "rotary/launch.h"
#include "schedule/launch.h"
#include "token_rows/launch.h"
#include "unpack/launch.h"

using padfree::AttentionOperand;
using padfree::DataType;
using padfree::PoolMode;

#define PADFREE_TEST_EXPORT extern "C" __attribute__((visibility("default")))

PADFREE_TEST_EXPORT int padfreeIndex(const int* mask, int* token_index, int* seq_lens, int* num_tokens, int B, int S,
                                     cudaStream_t stream) {
  return padfree::launchIndex({mask, token_index, seq_lens, num_tokens, B, S}, stream);
}

PADFREE_TEST_EXPORT int padfreePack(const void* x, const int* token_index, void* y, int T, int64_t num_slots,
                                    int64_t row_bytes, cudaStream_t stream) {
  return padfree::launchPack({x, token_index, y, T, num_slots, row_bytes}, stream);
}

PADFREE_TEST_EXPORT int padfreeUnpack(const void* packed, const int* token_index, void* y, int T, int64_t num_slots,
                                      int64_t row_bytes, cudaStream_t stream) {
  return padfree::launchUnpack({packed, token_index, y, T, num_slots, row_bytes}, stream);
}

PADFREE_TEST_EXPORT int padfreeSchedule(const int* seq_lens, int* cu_seqlens, int* token_index, int* positions,
                                        void* tasks, int B, int T, int S, int H, int num_tasks, int num_sms,
                                        const int* prefix, int causal, cudaStream_t stream) {
  return padfree::launchSchedule(
      {seq_lens, cu_seqlens, token_index, positions, static_cast<padfree::AttentionTask*>(tasks), B, T, S, H, num_tasks,
       num_sms, prefix, causal != 0},
      stream);
}

PADFREE_TEST_EXPORT int64_t padfreeTaskListEntries(int T, int B, int H) {
  return padfree::taskListEntries<int64_t>(T, B, H);
}

// The same arguments as padfreeEmbedding, then whether ids are read early, rows in e4m3 and what they are multiplied
// by; y may be null.
PADFREE_TEST_EXPORT int padfreeEmbeddingE4m3(const int* ids, const int* token_types, const int* positions,
                                             const int* cu_seqlens, const void* word_table, const void* position_table,
                                             const void* type_table, const void* gamma, const void* beta, void* y,
                                             int T, int B, int E, int V, int P, int N, int position_offset,
                                             float epsilon, int type, int early_ids, void* y_e4m3, float factor,
                                             cudaStream_t stream) {
  return padfree::launchEmbedding({{ids,
                                    token_types,
                                    positions,
                                    cu_seqlens,
                                    word_table,
                                    position_table,
                                    type_table,
                                    gamma,
                                    beta,
                                    y,
                                    T,
                                    B,
                                    E,
                                    V,
                                    P,
                                    N,
                                    position_offset,
                                    epsilon,
                                    static_cast<DataType>(type),
                                    early_ids != 0},
                                   y_e4m3,
                                   factor},
                                  stream);
}

PADFREE_TEST_EXPORT int padfreeEmbedding(const int* ids, const int* token_types, const int* positions,
                                         const int* cu_seqlens, const void* word_table, const void* position_table,
                                         const void* type_table, const void* gamma, const void* beta, void* y, int T,
                                         int B, int E, int V, int P, int N, int position_offset, float epsilon,
                                         int type, cudaStream_t stream) {
  return padfreeEmbeddingE4m3(ids, token_types, positions, cu_seqlens, word_table, position_table, type_table, gamma,
                              beta, y, T, B, E, V, P, N, position_offset, epsilon, type, 0, nullptr, 1.f, stream);
}

// Counts positions, and makes cu_seqlens, and the tasks of H heads where they are not null, of lengths as well.
PADFREE_TEST_EXPORT int padfreeEmbeddingOfLengths(const int* ids, const int* token_types, const int* seq_lens,
                                                  const void* word_table, const void* position_table,
                                                  const void* type_table, const void* gamma, const void* beta, void* y,
                                                  int T, int B, int E, int V, int P, int N, int position_offset,
                                                  float epsilon, int type, void* y_e4m3, float factor, int* cu_seqlens,
                                                  void* tasks, int num_tasks, int H, cudaStream_t stream) {
  padfree::EmbeddingParams params{{ids, token_types, nullptr, nullptr, word_table, position_table, type_table, gamma,
                                   beta, y, T, B, E, V, P, N, position_offset, epsilon, static_cast<DataType>(type)},
                                  y_e4m3,
                                  factor};
  params.schedule = {seq_lens, cu_seqlens, nullptr,   nullptr, static_cast<padfree::AttentionTask*>(tasks), B, T,
                     0,        H,          num_tasks, 0};
  return padfree::launchEmbedding(params, stream);
}

// The same arguments as padfreeLayerNorm, then rows in e4m3 and what they are multiplied by; y may be null.
PADFREE_TEST_EXPORT int padfreeLayerNormE4m3(const void* x, const void* bias, const void* residual, const void* gamma,
                                             const void* beta, void* y, void* sum, int64_t rows, int E, float epsilon,
                                             int rms, int type, void* y_e4m3, float factor, cudaStream_t stream) {
  return padfree::launchLayerNorm(
      {x, bias, residual, gamma, beta, y, sum, rows, E, epsilon, rms != 0, static_cast<DataType>(type), y_e4m3, factor},
      stream);
}

// The same with rows in fp32 instead of those in e4m3, and those of B sequences' first tokens where y_first is there,
// or what a pooler with N columns makes of them where pooled is.
PADFREE_TEST_EXPORT int padfreeLayerNormFp32(const void* x, const void* bias, const void* residual, const void* gamma,
                                             const void* beta, void* y, void* sum, int64_t rows, int E, float epsilon,
                                             int rms, int type, float* y_fp32, void* y_first, const int* cu_seqlens,
                                             int B, const void* pooler_weight, const void* pooler_bias, float* pooled,
                                             int N, int early_lengths, cudaStream_t stream) {
  padfree::LayerNormParams params{x, bias, residual, gamma, beta, y, sum, rows, E, epsilon, rms != 0};
  params.type = static_cast<DataType>(type);
  params.y_fp32 = y_fp32;
  params.y_first = y_first;
  params.cu_seqlens = cu_seqlens;
  params.B = B;
  params.pooler = {pooler_weight, pooler_bias, pooled, N};
  params.early_lengths = early_lengths != 0;
  return padfree::launchLayerNorm(params, stream);
}

PADFREE_TEST_EXPORT int padfreeLayerNorm(const void* x, const void* bias, const void* residual, const void* gamma,
                                         const void* beta, void* y, void* sum, int64_t rows, int E, float epsilon,
                                         int rms, int type, cudaStream_t stream) {
  return padfreeLayerNormE4m3(x, bias, residual, gamma, beta, y, sum, rows, E, epsilon, rms, type, nullptr, 1.f,
                              stream);
}

PADFREE_TEST_EXPORT int padfreeRotary(const void* x, const int* positions, const float* frequencies, void* y, int T,
                                      int W, int H, int D, int interleaved, int type, cudaStream_t stream) {
  return padfree::launchRotary(
      {x, positions, frequencies, y, T, W, H, D, interleaved != 0, static_cast<DataType>(type)}, stream);
}

PADFREE_TEST_EXPORT int padfreePostNorm(const void* x, const void* residual, const void* gamma, void* y, float* moments,
                                        int T, int E, float epsilon, int type, cudaStream_t stream) {
  return padfree::launchPostNorm({x, residual, gamma, y, moments, T, E, epsilon, static_cast<DataType>(type)}, stream);
}

// The schedule is made where cu_seqlens is there; tasks and positions may be null.
PADFREE_TEST_EXPORT int padfreeTokenRows(const int* ids, const void* table, void* y, float* moments, int T, int V,
                                         int N, float scale, int type, const int* seq_lens, int* cu_seqlens,
                                         int* positions, void* tasks, int B, int H, int num_tasks, int causal,
                                         cudaStream_t stream) {
  padfree::TokenRowsParams params{ids, table, y, moments, T, V, N, scale, static_cast<DataType>(type)};
  params.schedule = {seq_lens, cu_seqlens, nullptr,   positions, static_cast<padfree::AttentionTask*>(tasks), B, T,
                     0,        H,          num_tasks, 0};
  params.schedule.causal = causal != 0;
  return padfree::launchTokenRows(params, stream);
}

PADFREE_TEST_EXPORT int padfreeQkNormRotary(const void* qkv, const void* q_gamma, const void* k_gamma,
                                            const int* positions, const float* frequencies, void* qk, int T, int W,
                                            int H, int kv_heads, int D, float epsilon, int interleaved, int type,
                                            cudaStream_t stream) {
  return padfree::launchQkNormRotary({qkv, q_gamma, k_gamma, positions, frequencies, qk, T, W, H, kv_heads, D, epsilon,
                                      interleaved != 0, static_cast<DataType>(type)},
                                     stream);
}

// What kernels for architectures without the instruction make of numbers. Pointers to host memory.
PADFREE_TEST_EXPORT int padfreeRoundToE4m3(const float* x, unsigned char* y, int64_t count, cudaStream_t) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<unsigned char>(padfree::roundToE4m3(x[i]));
  return cudaSuccess;
}

// A GEMM's parameters in the order of tests/support/launchers.py, which holds the same struct.
struct LinearCall {
  const void *x, *weight;
  const float* scale;
  const void *bias, *residual;
  const float *x_moments, *residual_moments;
  const void* residual_scale;
  const int* positions;
  const float* frequencies;
  const void* head_scale;
  void *y, *y_e4m3, *y_int8;
  const float* y_factors;
  float* moments;
  void* scratch;
  int T, K, N, rotary_features;
  float x_epsilon, residual_epsilon, head_epsilon, y_scale;
  int activation, int8, gated, rms, type, wide_heads;
};

static padfree::LinearParams paramsOf(const LinearCall& call) {
  padfree::LinearParams params{};
  params.x = call.x;
  params.weight = call.weight;
  params.scale = call.scale;
  params.bias = call.bias;
  params.residual = call.residual;
  params.x_moments = call.x_moments;
  params.residual_moments = call.residual_moments;
  params.residual_scale = call.residual_scale;
  params.positions = call.positions;
  params.frequencies = call.frequencies;
  params.head_scale = call.head_scale;
  params.y = call.y;
  params.y_e4m3 = call.y_e4m3;
  params.y_int8 = call.y_int8;
  params.y_factors = call.y_factors;
  params.moments = call.moments;
  params.scratch = call.scratch;
  params.T = call.T;
  params.K = call.K;
  params.N = call.N;
  params.rotary_features = call.rotary_features;
  params.x_epsilon = call.x_epsilon;
  params.residual_epsilon = call.residual_epsilon;
  params.head_epsilon = call.head_epsilon;
  params.y_scale = call.y_scale;
  params.activation = static_cast<padfree::Activation>(call.activation);
  params.int8 = call.int8 != 0;
  params.gated = call.gated != 0;
  params.rms = call.rms != 0;
  params.wide_heads = call.wide_heads != 0;
  params.type = static_cast<DataType>(call.type);
  return params;
}

// The tiling: tokens of a tile, 0 as the plugin chooses; parts 0 for resident input. -1: the kernel on mma.sync with
// the tiling that it chooses; -2 and less: with tile 0 and the following ones, and with sums in fp16 where
// cluster_features is not 0.
PADFREE_TEST_EXPORT int padfreeLinear(const LinearCall* call, int tokens, int cluster_features, int cluster_tokens,
                                      int parts, cudaStream_t stream) {
  const padfree::LinearParams params = paramsOf(*call);
  if (tokens == -1) return padfree::launchLinearMma(params, stream);
  if (tokens < 0)
    return padfree::launchLinearMma(params, padfree::MmaTiling{-2 - tokens, parts, cluster_features != 0}, stream);
  if (tokens == 0) return padfree::launchLinear(params, stream);
  return padfree::launchLinear(params, padfree::LinearTiling{tokens, cluster_features, cluster_tokens, parts}, stream);
}

// Whether a kernel is compiled for this GEMM with this tiling, or, with tokens of -2 and less, with that tile.
PADFREE_TEST_EXPORT int padfreeHasTiling(const LinearCall* call, int tokens, int cluster_features, int cluster_tokens,
                                         int parts) {
  const padfree::LinearParams params = paramsOf(*call);
  if (tokens < 0) return padfree::hasMmaTiling(params, params.T, {-2 - tokens, parts, cluster_features != 0});
  return padfree::hasTiling(params, {tokens, cluster_features, cluster_tokens, parts});
}

// Whether Hopper's own kernels run on the current device, by what was compiled; -1 where there is no device.
PADFREE_TEST_EXPORT int padfreeHasHopperKernels() {
  padfree::LinearDevice device{};
  return padfree::linearDevice(device) == cudaSuccess ? device.is_hopper : -1;
}

// The number of the tile on mma.sync that a choice stands for, -1 for tilings of Hopper; `parts`: that its reduction
// has.
PADFREE_TEST_EXPORT int padfreeMmaTilingOf(int choice, int* parts) {
  const padfree::MmaTiling tiling = padfree::mmaTilingOf(choice);
  *parts = tiling.parts;
  return tiling.shape;
}

// As padfreeLinear, with a choice as an engine holds it.
PADFREE_TEST_EXPORT int padfreeLinearByChoice(const LinearCall* call, int choice, cudaStream_t stream) {
  return padfree::launchLinear(paramsOf(*call), choice, stream);
}

// Writes tokens and choice of each range of the measured table, and the number of ranges to `count`. Pointers that are
// not null say what is there.
PADFREE_TEST_EXPORT int padfreeMeasureLinear(const LinearCall* call, int min_tokens, int max_tokens, int capacity,
                                             int* ranges, int* count, cudaStream_t) {
  std::vector<padfree::LinearRange> table;
  const cudaError_t status = padfree::measureLinear(paramsOf(*call), min_tokens, max_tokens, table);
  *count = static_cast<int>(table.size());
  for (int i = 0; i < std::min(capacity, *count); ++i) {
    ranges[2 * i] = table[i].tokens;
    ranges[2 * i + 1] = table[i].choice;
  }
  return status;
}

// Writes the choices of all tilings of a GEMM, the cheapest by the cost model first, and their number to `count`.
PADFREE_TEST_EXPORT int padfreeRankLinear(const LinearCall* call, int multiprocessors, int capacity, int* choices,
                                          int* count) {
  const padfree::LinearParams params = paramsOf(*call);
  const std::vector<padfree::LinearTiling> tilings = padfree::rankLinearTilings(params, params.T, multiprocessors);
  *count = static_cast<int>(tilings.size());
  for (int i = 0; i < std::min(capacity, *count); ++i) choices[i] = padfree::choiceOf(tilings[i]);
  return cudaSuccess;
}

// Results in fp32 instead of y where y_fp32 is there, and of rows that are normed first where gamma is.
PADFREE_TEST_EXPORT int padfreeNormedPool(const void* x, const int* cu_seqlens, void* y, int T, int B, int E, int mode,
                                          int normalize, int type, float* y_fp32, const void* gamma, const void* beta,
                                          float epsilon, int rms, int early_lengths, cudaStream_t stream) {
  return padfree::launchPool({x, cu_seqlens, y, T, B, E, static_cast<PoolMode>(mode), normalize != 0,
                              static_cast<DataType>(type), y_fp32, gamma, beta, epsilon, rms != 0, early_lengths != 0},
                             stream);
}

PADFREE_TEST_EXPORT int padfreePool(const void* x, const int* cu_seqlens, void* y, int T, int B, int E, int mode,
                                    int normalize, int type, cudaStream_t stream) {
  return padfreeNormedPool(x, cu_seqlens, y, T, B, E, mode, normalize, type, nullptr, nullptr, nullptr, 0.f, 0, 0,
                           stream);
}

// Operands as (data, bias, token_stride, head_stride) each; kernel: 0 as the plugin chooses, 1 mma, 2 sm90,
// 3 sm90 for short sequences, 4 for near windows, 5 mma for disentangled biases, 6 sm90 for wide heads.
PADFREE_TEST_EXPORT int padfreeAttention(
    const void* q, const void* q_bias, int64_t q_token_stride, int64_t q_head_stride, const void* k, const void* k_bias,
    int64_t k_token_stride, int64_t k_head_stride, const void* v, const void* v_bias, int64_t v_token_stride,
    int64_t v_head_stride, int64_t bias_head_stride, const int* cu_seqlens, const void* tasks, int num_tasks, void* y,
    int T, int B, int H, int kv_heads, int D, int max_seq_len, float scale, int window_left, int window_right, int bias,
    int bias_range, const float* slopes, const float* distance_bias, const void* k_position, const void* q_position,
    float e4m3_factor, int early_lengths, const int* prefix, int type, int kernel, cudaStream_t stream) {
  const AttentionOperand query{q, q_bias, q_token_stride, q_head_stride, bias_head_stride};
  const AttentionOperand key{k, k_bias, k_token_stride, k_head_stride, bias_head_stride};
  const AttentionOperand value{v, v_bias, v_token_stride, v_head_stride, bias_head_stride};
  constexpr decltype(&padfree::launchAttention) kLaunchers[] = {
      padfree::launchAttention,          padfree::launchAttentionMma,        padfree::launchAttentionSm90,
      padfree::launchAttentionSm90Short, padfree::launchAttentionSm90Window, padfree::launchAttentionDisentangled,
      padfree::launchAttentionSm90Wide};
  padfree::AttentionParams params{};
  params.q = query;
  params.k = key;
  params.v = value;
  params.cu_seqlens = cu_seqlens;
  params.tasks = static_cast<const padfree::AttentionTask*>(tasks);
  params.num_tasks = num_tasks;
  params.y = y;
  params.T = T;
  params.B = B;
  params.H = H;
  params.D = D;
  params.max_seq_len = max_seq_len;
  params.scale = scale;
  params.type = static_cast<DataType>(type);
  params.kv_heads = kv_heads;
  params.window_left = window_left;
  params.window_right = window_right;
  params.bias = static_cast<padfree::AttentionBias>(bias);
  params.bias_range = bias_range;
  params.slopes = slopes;
  params.distance_bias = distance_bias;
  params.k_position = k_position;
  params.q_position = q_position;
  params.e4m3_factor = e4m3_factor;
  params.early_lengths = early_lengths != 0;
  params.prefix = prefix;
  return kLaunchers[kernel](params, stream);
}
