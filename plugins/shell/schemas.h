// SPDX-License-Identifier: Apache-2.0
// The operators as onnx_tools/operators describes them. Written by tests/plugins/operator_table.py; not by hand.
#pragma once

#include <array>
#include <cstdint>

#include "shell/operator.h"

// clang-format off
namespace padfree {

inline OperatorSchema attentionSchema() {
  return {
      "PadfreeAttention",
      {
          integerField("num_heads", 1, 4096),
          integerField("num_kv_heads", 1, 4096),
          integerField("head_size", 8, 256, 8),
          realField("scale"),
          choiceField("qkv_layout", {"3HD", "H3D", "separate", "2HD"}),
          flagField("has_qkv_bias"),
          flagField("has_tasks"),
          integerField("max_seq_len", 0, INT32_MAX),
          integerField("window_left", -1, INT32_MAX),
          integerField("window_right", -1, INT32_MAX),
          choiceField("bias", {"none", "slope", "distance", "disentangled"}),
          integerField("bias_range", 0, 65536),
          flagField("has_k_position"),
          flagField("has_q_position"),
          flagField("quantized"),
          realField("y_scale", 6.103515625e-05f, 16384.0f),
          flagField("early_lengths"),
          laterFlagField("has_prefix"),
      },
      {
          {"qk", TensorKind::kActivation, "[T,H*D+KVH*D]", {{"qkv_layout", {"2HD"}}}},
          {"qkv", TensorKind::kActivation, "[T,H*D+2*KVH*D]", {{"qkv_layout", {"3HD", "H3D", "2HD"}}}},
          {"q", TensorKind::kActivation, "[T,H*D]", {{"qkv_layout", {"separate"}}}},
          {"k", TensorKind::kActivation, "[T,KVH*D]", {{"qkv_layout", {"separate"}}}},
          {"v", TensorKind::kActivation, "[T,KVH*D]", {{"qkv_layout", {"separate"}}}},
          {"qkv_bias", TensorKind::kActivation, "[H*D+2*KVH*D]", {{"has_qkv_bias", {"1"}}}},
          {"cu_seqlens", TensorKind::kInt32, "[B+1]", {}},
          {"tasks", TensorKind::kInt32, "[L,4]", {{"has_tasks", {"1"}}}},
          {"slopes", TensorKind::kFloat, "[H]", {{"bias", {"slope"}}}},
          {"distance_bias", TensorKind::kFloat, "[H,2*R+1]", {{"bias", {"distance"}}}},
          {"k_position", TensorKind::kActivation, "[2*R+1,H*D]", {{"has_k_position", {"1"}}}},
          {"q_position", TensorKind::kActivation, "[2*R+1,H*D]", {{"has_q_position", {"1"}}}},
          {"prefix", TensorKind::kInt32, "[F]", {{"has_prefix", {"1"}}}},
      },
      {
          {"y", TensorKind::kActivation, "[T,H*D]", {{"quantized", {"0"}}}},
          {"y", TensorKind::kE4m3, "[T,H*D]", {{"quantized", {"1"}}}},
      },
      {
          {{"has_prefix", {"1"}}, {"window_right", {"0"}}},
          {{"has_k_position", {"1"}}, {"bias", {"disentangled"}}},
          {{"has_q_position", {"1"}}, {"bias", {"disentangled"}}},
          {{"bias", {"disentangled"}}, {"window_left", {"-1"}}},
          {{"bias", {"disentangled"}}, {"window_right", {"-1"}}},
      },
      {
          {"quantized", {"1"}},
      },
      {
          {"H", "num_heads"},
          {"KVH", "num_kv_heads"},
          {"D", "head_size"},
          {"R", "bias_range"},
      },
  };
}

inline OperatorSchema embeddingSchema() {
  return {
      "PadfreeEmbedding",
      {
          realField("epsilon", 0.0f),
          integerField("position_offset", 0, INT32_MAX),
          flagField("has_token_types"),
          flagField("has_positions"),
          flagField("has_position_table"),
          flagField("has_beta"),
          flagField("schedules"),
          flagField("has_tasks"),
          integerField("num_heads", 1, 4096),
          choiceField("results", {"act", "e4m3", "both"}),
          realField("y_scale", 6.103515625e-05f, 16384.0f),
          flagField("early_ids"),
      },
      {
          {"ids", TensorKind::kInt32, "[T]", {}},
          {"token_types", TensorKind::kInt32, "[T]", {{"has_token_types", {"1"}}}},
          {"positions", TensorKind::kInt32, "[T]", {{"has_positions", {"1"}}}},
          {"cu_seqlens", TensorKind::kInt32, "[B+1]", {{"schedules", {"0"}}}},
          {"word_table", TensorKind::kActivation, "[V,E]", {}},
          {"position_table", TensorKind::kActivation, "[P,E]", {{"has_position_table", {"1"}}}},
          {"type_table", TensorKind::kActivation, "[N,E]", {{"has_token_types", {"1"}}}},
          {"gamma", TensorKind::kActivation, "[E]", {}},
          {"beta", TensorKind::kActivation, "[E]", {{"has_beta", {"1"}}}},
          {"seq_lens", TensorKind::kInt32, "[B]", {{"schedules", {"1"}}}},
      },
      {
          {"y", TensorKind::kActivation, "[T,E]", {{"results", {"act", "both"}}}},
          {"y_e4m3", TensorKind::kE4m3, "[T,E]", {{"results", {"e4m3", "both"}}}},
          {"cu_seqlens", TensorKind::kInt32, "[B+1]", {{"schedules", {"1"}}}},
          {"tasks", TensorKind::kInt32, "[L,4]", {{"has_tasks", {"1"}}}},
      },
      {
          {{"has_positions", {"1"}}, {"has_position_table", {"1"}}},
          {{"has_tasks", {"1"}}, {"schedules", {"1"}}},
      },
      {
          {"results", {"e4m3", "both"}},
      },
      {
          {"H", "num_heads"},
      },
  };
}

inline OperatorSchema indexSchema() {
  return {
      "PadfreeIndex",
      {},
      {
          {"mask", TensorKind::kInt32, "[B,S]", {}},
      },
      {
          {"token_index", TensorKind::kInt32, "[T]", {}},
          {"seq_lens", TensorKind::kInt32, "[B]", {}},
          {"num_tokens", TensorKind::kInt32, "[]", {}},
      },
      {},
      {},
      {},
  };
}

inline OperatorSchema layerNormSchema() {
  return {
      "PadfreeLayerNorm",
      {
          realField("epsilon", 0.0f),
          flagField("rms"),
          flagField("has_bias"),
          flagField("has_residual"),
          flagField("has_beta"),
          flagField("has_sum"),
          flagField("has_first"),
          flagField("has_pooler"),
          flagField("early_lengths"),
          choiceField("results", {"act", "e4m3", "both", "fp32", "act_fp32"}),
          realField("y_scale", 6.103515625e-05f, 16384.0f),
      },
      {
          {"x", TensorKind::kActivation, "[...,E]", {}},
          {"bias", TensorKind::kActivation, "[E]", {{"has_bias", {"1"}}}},
          {"residual", TensorKind::kActivation, "[...,E]", {{"has_residual", {"1"}}}},
          {"gamma", TensorKind::kActivation, "[E]", {}},
          {"beta", TensorKind::kActivation, "[E]", {{"has_beta", {"1"}}}},
          {"cu_seqlens", TensorKind::kInt32, "[B+1]", {{"has_first", {"1"}}}},
          {"pooler_weight", TensorKind::kActivation, "[N,E]", {{"has_pooler", {"1"}}}},
          {"pooler_bias", TensorKind::kActivation, "[N]", {{"has_pooler", {"1"}}}},
      },
      {
          {"y", TensorKind::kActivation, "[...,E]", {{"results", {"act", "both", "act_fp32"}}}},
          {"y_e4m3", TensorKind::kE4m3, "[...,E]", {{"results", {"e4m3", "both"}}}},
          {"y_fp32", TensorKind::kFloat, "[...,E]", {{"results", {"fp32", "act_fp32"}}}},
          {"sum", TensorKind::kActivation, "[...,E]", {{"has_sum", {"1"}}}},
          {"y_first", TensorKind::kActivation, "[B,E]", {{"has_first", {"1"}}, {"has_pooler", {"0"}}}},
          {"pooled", TensorKind::kFloat, "[B,N]", {{"has_pooler", {"1"}}}},
      },
      {
          {{"has_first", {"1"}}, {"results", {"fp32", "act_fp32"}}},
          {{"has_pooler", {"1"}}, {"has_first", {"1"}}},
          {{"has_pooler", {"1"}}, {"has_bias", {"0"}}},
          {{"has_pooler", {"1"}}, {"has_residual", {"0"}}},
      },
      {
          {"results", {"e4m3", "both"}},
          {"results", {"fp32", "act_fp32"}},
      },
      {},
  };
}

inline OperatorSchema linearSchema() {
  return {
      "PadfreeLinear",
      {
          choiceField("activation", {"none", "gelu", "gelu_tanh", "relu", "silu", "sigmoid"}),
          flagField("has_bias"),
          flagField("has_residual"),
          flagField("has_x_moments"),
          flagField("has_residual_moments"),
          flagField("has_moments"),
          flagField("gated"),
          flagField("rms"),
          integerField("rotary_features", 0, INT32_MAX, 16),
          realField("x_epsilon", 0.0f),
          realField("residual_epsilon", 0.0f),
          measuredField("choices"),
      },
      {
          {"x", TensorKind::kActivation, "[T,K]", {}},
          {"weight", TensorKind::kActivation, "[K,N]", {}},
          {"bias", TensorKind::kActivation, "[N]", {{"has_bias", {"1"}}}},
          {"residual", TensorKind::kActivation, "[T,N]", {{"has_residual", {"1"}}}},
          {"x_moments", TensorKind::kFloat, "[K/64,T,2]", {{"has_x_moments", {"1"}}}},
          {"residual_moments", TensorKind::kFloat, "[N/64,T,2]", {{"has_residual_moments", {"1"}}}},
          {"residual_scale", TensorKind::kActivation, "[N]", {{"has_residual_moments", {"1"}}}},
          {"positions", TensorKind::kInt32, "[T]", {{"rotary_features", {}}}},
          {"frequencies", TensorKind::kFloat, "[C/2]", {{"rotary_features", {}}}},
      },
      {
          {"y", TensorKind::kActivation, "[T,N]", {{"gated", {"0"}}}},
          {"y", TensorKind::kActivation, "[T,N/2]", {{"gated", {"1"}}}},
          {"moments", TensorKind::kFloat, "[N/64,T,2]", {{"has_moments", {"1"}}}},
      },
      {
          {{"has_residual_moments", {"1"}}, {"has_residual", {"1"}}},
          {{"has_residual_moments", {"1"}}, {"has_x_moments", {"0"}}},
          {{"has_residual_moments", {"1"}}, {"activation", {"none"}}},
          {{"has_moments", {"1"}}, {"activation", {"none"}}},
          {{"gated", {"1"}}, {"has_residual", {"0"}}},
          {{"gated", {"1"}}, {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"activation", {"none"}}},
          {{"rotary_features", {}}, {"has_residual", {"0"}}},
          {{"rotary_features", {}}, {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"gated", {"0"}}},
      },
      {
          {"activation", {"none", "gelu", "gelu_tanh", "relu", "silu", "sigmoid"}},
      },
      {
          {"C", "rotary_features"},
      },
  };
}

inline OperatorSchema linearFp8Schema() {
  return {
      "PadfreeLinearFp8",
      {
          choiceField("activation", {"none", "gelu", "gelu_tanh", "relu", "silu", "sigmoid"}),
          flagField("has_residual"),
          flagField("has_x_moments"),
          flagField("has_residual_moments"),
          flagField("has_moments"),
          flagField("gated"),
          flagField("rms"),
          integerField("rotary_features", 0, INT32_MAX, 16),
          realField("x_epsilon", 0.0f),
          realField("residual_epsilon", 0.0f),
          choiceField("results", {"act", "e4m3", "both"}),
          realField("y_scale", 6.103515625e-05f, 16384.0f),
          measuredField("choices"),
      },
      {
          {"x", TensorKind::kE4m3, "[T,K]", {}},
          {"weight", TensorKind::kE4m3, "[N,K]", {}},
          {"scale", TensorKind::kFloat, "[N]", {}},
          {"bias", TensorKind::kActivation, "[N]", {}},
          {"residual", TensorKind::kActivation, "[T,N]", {{"has_residual", {"1"}}}},
          {"x_moments", TensorKind::kFloat, "[K/64,T,2]", {{"has_x_moments", {"1"}}}},
          {"residual_moments", TensorKind::kFloat, "[N/64,T,2]", {{"has_residual_moments", {"1"}}}},
          {"residual_scale", TensorKind::kActivation, "[N]", {{"has_residual_moments", {"1"}}}},
          {"positions", TensorKind::kInt32, "[T]", {{"rotary_features", {}}}},
          {"frequencies", TensorKind::kFloat, "[C/2]", {{"rotary_features", {}}}},
      },
      {
          {"y", TensorKind::kActivation, "[T,N]", {{"results", {"act", "both"}}, {"gated", {"0"}}}},
          {"y", TensorKind::kActivation, "[T,N/2]", {{"results", {"act", "both"}}, {"gated", {"1"}}}},
          {"y_e4m3", TensorKind::kE4m3, "[T,N]", {{"results", {"e4m3", "both"}}, {"gated", {"0"}}}},
          {"y_e4m3", TensorKind::kE4m3, "[T,N/2]", {{"results", {"e4m3", "both"}}, {"gated", {"1"}}}},
          {"moments", TensorKind::kFloat, "[N/64,T,2]", {{"has_moments", {"1"}}}},
      },
      {
          {{"has_residual_moments", {"1"}}, {"has_residual", {"1"}}},
          {{"has_residual_moments", {"1"}}, {"has_x_moments", {"0"}}},
          {{"has_residual_moments", {"1"}}, {"activation", {"none"}}},
          {{"has_moments", {"1"}}, {"activation", {"none"}}},
          {{"gated", {"1"}}, {"has_residual", {"0"}}},
          {{"gated", {"1"}}, {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"activation", {"none"}}},
          {{"rotary_features", {}}, {"has_residual", {"0"}}},
          {{"rotary_features", {}}, {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"gated", {"0"}}},
          {{"has_moments", {"1"}}, {"results", {"act", "both"}}},
          {{"gated", {"1"}}, {"results", {"act", "e4m3"}}},
          {{"rotary_features", {}}, {"results", {"act"}}},
      },
      {
          {"activation", {"none", "gelu", "gelu_tanh", "relu", "silu", "sigmoid"}},
      },
      {
          {"C", "rotary_features"},
      },
  };
}

inline OperatorSchema packSchema() {
  return {
      "PadfreePack",
      {},
      {
          {"x", TensorKind::kElement, "[B,S,...]", {}},
          {"token_index", TensorKind::kInt32, "[T]", {}},
      },
      {
          {"packed", TensorKind::kElement, "[T,...]", {}},
      },
      {},
      {},
      {},
  };
}

inline OperatorSchema poolSchema() {
  return {
      "PadfreePool",
      {
          realField("epsilon", 0.0f),
          choiceField("mode", {"first", "last", "mean", "max", "each"}),
          flagField("normalize"),
          flagField("has_norm"),
          flagField("has_beta"),
          flagField("rms"),
          choiceField("results", {"act", "fp32"}),
          flagField("early_lengths"),
      },
      {
          {"x", TensorKind::kActivation, "[T,E]", {{"mode", {"first", "last", "mean", "max"}}}},
          {"x", TensorKind::kActivation, "[B,E]", {{"mode", {"each"}}}},
          {"cu_seqlens", TensorKind::kInt32, "[B+1]", {}},
          {"gamma", TensorKind::kActivation, "[E]", {{"has_norm", {"1"}}}},
          {"beta", TensorKind::kActivation, "[E]", {{"has_beta", {"1"}}}},
      },
      {
          {"y", TensorKind::kActivation, "[B,E]", {{"results", {"act"}}}},
          {"y_fp32", TensorKind::kFloat, "[B,E]", {{"results", {"fp32"}}}},
      },
      {
          {{"has_beta", {"1"}}, {"has_norm", {"1"}}},
          {{"has_norm", {"1"}}, {"mode", {"first", "last", "mean", "each"}}},
      },
      {
          {"results", {"fp32"}},
          {"has_norm", {"1"}},
      },
      {},
  };
}

inline OperatorSchema qkNormRotarySchema() {
  return {
      "PadfreeQkNormRotary",
      {
          realField("epsilon", 0.0f),
          integerField("num_heads", 1, 4096),
          integerField("num_kv_heads", 1, 4096),
          integerField("head_size", 2, INT32_MAX, 2),
          choiceField("pairing", {"half", "interleaved"}),
      },
      {
          {"qkv", TensorKind::kActivation, "[T,H*D+2*KVH*D]", {}},
          {"q_gamma", TensorKind::kActivation, "[D]", {}},
          {"k_gamma", TensorKind::kActivation, "[D]", {}},
          {"positions", TensorKind::kInt32, "[T]", {}},
          {"frequencies", TensorKind::kFloat, "[1,D/2]", {}},
      },
      {
          {"qk", TensorKind::kActivation, "[T,H*D+KVH*D]", {}},
      },
      {},
      {},
      {
          {"H", "num_heads"},
          {"KVH", "num_kv_heads"},
          {"D", "head_size"},
      },
  };
}

inline OperatorSchema rotarySchema() {
  return {
      "PadfreeRotary",
      {
          integerField("head_size", 2, INT32_MAX, 2),
          integerField("num_heads", 1, INT32_MAX),
          choiceField("pairing", {"half", "interleaved"}),
      },
      {
          {"x", TensorKind::kActivation, "[T,W]", {}},
          {"positions", TensorKind::kInt32, "[T]", {}},
          {"frequencies", TensorKind::kFloat, "[1,D/2]", {}},
      },
      {
          {"y", TensorKind::kActivation, "[T,W]", {}},
      },
      {},
      {},
      {
          {"D", "head_size"},
          {"H", "num_heads"},
      },
  };
}

inline OperatorSchema scheduleSchema() {
  return {
      "PadfreeSchedule",
      {
          flagField("has_extent"),
          flagField("has_positions"),
          flagField("has_tasks"),
          integerField("num_heads", 1, 4096),
          laterFlagField("has_prefix"),
      },
      {
          {"seq_lens", TensorKind::kInt32, "[B]", {}},
          {"tokens", TensorKind::kInt32, "[T]", {}},
          {"extent", TensorKind::kInt32, "[S]", {{"has_extent", {"1"}}}},
          {"prefix", TensorKind::kInt32, "[F]", {{"has_prefix", {"1"}}}},
      },
      {
          {"cu_seqlens", TensorKind::kInt32, "[B+1]", {}},
          {"token_index", TensorKind::kInt32, "[T]", {{"has_extent", {"1"}}}},
          {"positions", TensorKind::kInt32, "[T]", {{"has_positions", {"1"}}}},
          {"tasks", TensorKind::kInt32, "[L,4]", {{"has_tasks", {"1"}}}},
      },
      {},
      {},
      {
          {"H", "num_heads"},
      },
  };
}

inline OperatorSchema unpackSchema() {
  return {
      "PadfreeUnpack",
      {},
      {
          {"packed", TensorKind::kElement, "[T,...]", {}},
          {"token_index", TensorKind::kInt32, "[T]", {}},
          {"seq_lens", TensorKind::kInt32, "[B]", {}},
          {"extent", TensorKind::kInt32, "[*,S]", {}},
      },
      {
          {"x", TensorKind::kElement, "[B,S,...]", {}},
      },
      {},
      {},
      {},
  };
}

// One of a plugin.cpp each.
OperatorInfo attentionOperator();
OperatorInfo embeddingOperator();
OperatorInfo indexOperator();
OperatorInfo layerNormOperator();
OperatorInfo linearOperator();
OperatorInfo linearFp8Operator();
OperatorInfo packOperator();
OperatorInfo poolOperator();
OperatorInfo qkNormRotaryOperator();
OperatorInfo rotaryOperator();
OperatorInfo scheduleOperator();
OperatorInfo unpackOperator();

inline constexpr std::array kOperators = {
    attentionOperator,
    embeddingOperator,
    indexOperator,
    layerNormOperator,
    linearOperator,
    linearFp8Operator,
    packOperator,
    poolOperator,
    qkNormRotaryOperator,
    rotaryOperator,
    scheduleOperator,
    unpackOperator,
};

}  // namespace padfree
