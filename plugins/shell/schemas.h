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
          activationTensor("qk", "[T,H*D+KVH*D]", {{"qkv_layout", {"2HD"}}}),
          activationTensor("qkv", "[T,H*D+2*KVH*D]", {{"qkv_layout", {"3HD", "H3D", "2HD"}}}),
          activationTensor("q", "[T,H*D]", {{"qkv_layout", {"separate"}}}),
          activationTensor("k", "[T,KVH*D]", {{"qkv_layout", {"separate"}}}),
          activationTensor("v", "[T,KVH*D]", {{"qkv_layout", {"separate"}}}),
          activationTensor("qkv_bias", "[H*D+2*KVH*D]", {isSet("has_qkv_bias")}),
          int32Tensor("cu_seqlens", "[B+1]"),
          int32Tensor("tasks", "[L,4]", {isSet("has_tasks")}),
          floatTensor("slopes", "[H]", {{"bias", {"slope"}}}),
          floatTensor("distance_bias", "[H,2*R+1]", {{"bias", {"distance"}}}),
          activationTensor("k_position", "[2*R+1,H*D]", {isSet("has_k_position")}),
          activationTensor("q_position", "[2*R+1,H*D]", {isSet("has_q_position")}),
          int32Tensor("prefix", "[F]", {isSet("has_prefix")}),
      },
      {
          activationTensor("y", "[T,H*D]", {{"quantized", {"0"}}}),
          e4m3Tensor("y", "[T,H*D]", {isSet("quantized")}),
      },
      {
          {isSet("has_prefix"), {"window_right", {"0"}}},
          {isSet("has_k_position"), {"bias", {"disentangled"}}},
          {isSet("has_q_position"), {"bias", {"disentangled"}}},
          {{"bias", {"disentangled"}}, {"window_left", {"-1"}}},
          {{"bias", {"disentangled"}}, {"window_right", {"-1"}}},
      },
      {
          isSet("quantized"),
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
          laterFlagField("causal_tasks"),
          choiceField("results", {"act", "e4m3", "both"}),
          realField("y_scale", 6.103515625e-05f, 16384.0f),
          flagField("early_ids"),
      },
      {
          int32Tensor("ids", "[T]"),
          int32Tensor("token_types", "[T]", {isSet("has_token_types")}),
          int32Tensor("positions", "[T]", {isSet("has_positions")}),
          int32Tensor("cu_seqlens", "[B+1]", {{"schedules", {"0"}}}),
          activationTensor("word_table", "[V,E]"),
          activationTensor("position_table", "[P,E]", {isSet("has_position_table")}),
          activationTensor("type_table", "[N,E]", {isSet("has_token_types")}),
          activationTensor("gamma", "[E]"),
          activationTensor("beta", "[E]", {isSet("has_beta")}),
          int32Tensor("seq_lens", "[B]", {isSet("schedules")}),
      },
      {
          activationTensor("y", "[T,E]", {{"results", {"act", "both"}}}),
          e4m3Tensor("y_e4m3", "[T,E]", {{"results", {"e4m3", "both"}}}),
          int32Tensor("cu_seqlens", "[B+1]", {isSet("schedules")}),
          int32Tensor("tasks", "[L,4]", {isSet("has_tasks")}),
      },
      {
          {isSet("has_positions"), isSet("has_position_table")},
          {isSet("has_tasks"), isSet("schedules")},
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
          int32Tensor("mask", "[B,S]"),
      },
      {
          int32Tensor("token_index", "[T]"),
          int32Tensor("seq_lens", "[B]"),
          int32Tensor("num_tokens", "[]"),
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
          activationTensor("x", "[...,E]"),
          activationTensor("bias", "[E]", {isSet("has_bias")}),
          activationTensor("residual", "[...,E]", {isSet("has_residual")}),
          activationTensor("gamma", "[E]"),
          activationTensor("beta", "[E]", {isSet("has_beta")}),
          int32Tensor("cu_seqlens", "[B+1]", {isSet("has_first")}),
          activationTensor("pooler_weight", "[N,E]", {isSet("has_pooler")}),
          activationTensor("pooler_bias", "[N]", {isSet("has_pooler")}),
      },
      {
          activationTensor("y", "[...,E]", {{"results", {"act", "both", "act_fp32"}}}),
          e4m3Tensor("y_e4m3", "[...,E]", {{"results", {"e4m3", "both"}}}),
          floatTensor("y_fp32", "[...,E]", {{"results", {"fp32", "act_fp32"}}}),
          activationTensor("sum", "[...,E]", {isSet("has_sum")}),
          activationTensor("y_first", "[B,E]", {isSet("has_first"), {"has_pooler", {"0"}}}),
          floatTensor("pooled", "[B,N]", {isSet("has_pooler")}),
      },
      {
          {isSet("has_first"), {"results", {"fp32", "act_fp32"}}},
          {isSet("has_pooler"), isSet("has_first")},
          {isSet("has_pooler"), {"has_bias", {"0"}}},
          {isSet("has_pooler"), {"has_residual", {"0"}}},
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
          laterFlagField("norms_heads"),
          laterFlagField("wide_heads"),
          measuredField("choices"),
      },
      {
          activationTensor("x", "[T,K]"),
          activationTensor("weight", "[K,N]"),
          activationTensor("bias", "[N]", {isSet("has_bias")}),
          activationTensor("residual", "[T,N]", {isSet("has_residual")}),
          floatTensor("x_moments", "[K/64,T,2]", {isSet("has_x_moments")}),
          floatTensor("residual_moments", "[N/64,T,2]", {isSet("has_residual_moments")}),
          activationTensor("residual_scale", "[N]", {isSet("has_residual_moments")}),
          int32Tensor("positions", "[T]", {{"rotary_features", {}}}),
          floatTensor("frequencies", "[C/2]", {{"rotary_features", {}}}),
          activationTensor("head_scale", "[C]", {isSet("norms_heads")}),
      },
      {
          activationTensor("y", "[T,N]", {{"gated", {"0"}}}),
          activationTensor("y", "[T,N/2]", {isSet("gated")}),
          floatTensor("moments", "[N/64,T,2]", {isSet("has_moments")}),
      },
      {
          {isSet("has_residual_moments"), isSet("has_residual")},
          {isSet("has_residual_moments"), {"has_x_moments", {"0"}}},
          {isSet("has_residual_moments"), {"activation", {"none"}}},
          {isSet("has_moments"), {"activation", {"none"}}},
          {isSet("gated"), {"has_residual", {"0"}}},
          {isSet("gated"), {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"activation", {"none"}}},
          {{"rotary_features", {}}, {"has_residual", {"0"}}},
          {{"rotary_features", {}}, {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"gated", {"0"}}},
          {isSet("norms_heads"), {"rotary_features", {}}},
          {isSet("wide_heads"), isSet("norms_heads")},
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
          e4m3Tensor("x", "[T,K]"),
          e4m3Tensor("weight", "[N,K]"),
          floatTensor("scale", "[N]"),
          activationTensor("bias", "[N]"),
          activationTensor("residual", "[T,N]", {isSet("has_residual")}),
          floatTensor("x_moments", "[K/64,T,2]", {isSet("has_x_moments")}),
          floatTensor("residual_moments", "[N/64,T,2]", {isSet("has_residual_moments")}),
          activationTensor("residual_scale", "[N]", {isSet("has_residual_moments")}),
          int32Tensor("positions", "[T]", {{"rotary_features", {}}}),
          floatTensor("frequencies", "[C/2]", {{"rotary_features", {}}}),
      },
      {
          activationTensor("y", "[T,N]", {{"results", {"act", "both"}}, {"gated", {"0"}}}),
          activationTensor("y", "[T,N/2]", {{"results", {"act", "both"}}, isSet("gated")}),
          e4m3Tensor("y_e4m3", "[T,N]", {{"results", {"e4m3", "both"}}, {"gated", {"0"}}}),
          e4m3Tensor("y_e4m3", "[T,N/2]", {{"results", {"e4m3", "both"}}, isSet("gated")}),
          floatTensor("moments", "[N/64,T,2]", {isSet("has_moments")}),
      },
      {
          {isSet("has_residual_moments"), isSet("has_residual")},
          {isSet("has_residual_moments"), {"has_x_moments", {"0"}}},
          {isSet("has_residual_moments"), {"activation", {"none"}}},
          {isSet("has_moments"), {"activation", {"none"}}},
          {isSet("gated"), {"has_residual", {"0"}}},
          {isSet("gated"), {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"activation", {"none"}}},
          {{"rotary_features", {}}, {"has_residual", {"0"}}},
          {{"rotary_features", {}}, {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"gated", {"0"}}},
          {isSet("has_moments"), {"results", {"act", "both"}}},
          {isSet("gated"), {"results", {"act", "e4m3"}}},
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

inline OperatorSchema linearInt8Schema() {
  return {
      "PadfreeLinearInt8",
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
          choiceField("results", {"act", "int8", "both"}),
      },
      {
          int8Tensor("x", "[T,K]"),
          int8Tensor("weight", "[N,K]"),
          floatTensor("scale", "[N]"),
          activationTensor("bias", "[N]"),
          activationTensor("residual", "[T,N]", {isSet("has_residual")}),
          floatTensor("x_moments", "[K/64,T,2]", {isSet("has_x_moments")}),
          floatTensor("residual_moments", "[N/64,T,2]", {isSet("has_residual_moments")}),
          activationTensor("residual_scale", "[N]", {isSet("has_residual_moments")}),
          int32Tensor("positions", "[T]", {{"rotary_features", {}}}),
          floatTensor("frequencies", "[C/2]", {{"rotary_features", {}}}),
          floatTensor("y_factors", "[N]", {{"results", {"int8", "both"}}, {"gated", {"0"}}}),
          floatTensor("y_factors", "[N/2]", {{"results", {"int8", "both"}}, isSet("gated")}),
      },
      {
          activationTensor("y", "[T,N]", {{"results", {"act", "both"}}, {"gated", {"0"}}}),
          activationTensor("y", "[T,N/2]", {{"results", {"act", "both"}}, isSet("gated")}),
          int8Tensor("y_int8", "[T,N]", {{"results", {"int8", "both"}}, {"gated", {"0"}}}),
          int8Tensor("y_int8", "[T,N/2]", {{"results", {"int8", "both"}}, isSet("gated")}),
          floatTensor("moments", "[N/64,T,2]", {isSet("has_moments")}),
      },
      {
          {isSet("has_residual_moments"), isSet("has_residual")},
          {isSet("has_residual_moments"), {"has_x_moments", {"0"}}},
          {isSet("has_residual_moments"), {"activation", {"none"}}},
          {isSet("has_moments"), {"activation", {"none"}}},
          {isSet("gated"), {"has_residual", {"0"}}},
          {isSet("gated"), {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"activation", {"none"}}},
          {{"rotary_features", {}}, {"has_residual", {"0"}}},
          {{"rotary_features", {}}, {"has_moments", {"0"}}},
          {{"rotary_features", {}}, {"gated", {"0"}}},
          {isSet("has_moments"), {"results", {"act", "both"}}},
          {isSet("gated"), {"results", {"act", "int8"}}},
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
          elementTensor("x", "[B,S,...]"),
          int32Tensor("token_index", "[T]"),
      },
      {
          elementTensor("packed", "[T,...]"),
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
          activationTensor("x", "[T,E]", {{"mode", {"first", "last", "mean", "max"}}}),
          activationTensor("x", "[B,E]", {{"mode", {"each"}}}),
          int32Tensor("cu_seqlens", "[B+1]"),
          activationTensor("gamma", "[E]", {isSet("has_norm")}),
          activationTensor("beta", "[E]", {isSet("has_beta")}),
      },
      {
          activationTensor("y", "[B,E]", {{"results", {"act"}}}),
          floatTensor("y_fp32", "[B,E]", {{"results", {"fp32"}}}),
      },
      {
          {isSet("has_beta"), isSet("has_norm")},
          {isSet("has_norm"), {"mode", {"first", "last", "mean", "each"}}},
      },
      {
          {"results", {"fp32"}},
          isSet("has_norm"),
      },
      {},
  };
}

inline OperatorSchema postNormSchema() {
  return {
      "PadfreePostNorm",
      {
          realField("epsilon", 0.0f),
          flagField("has_moments"),
      },
      {
          activationTensor("x", "[T,N]"),
          activationTensor("residual", "[T,N]"),
          activationTensor("gamma", "[N]"),
      },
      {
          activationTensor("y", "[T,N]"),
          floatTensor("moments", "[N/64,T,2]", {isSet("has_moments")}),
      },
      {},
      {
          {"has_moments", {"0", "1"}},
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
          activationTensor("qkv", "[T,H*D+2*KVH*D]"),
          activationTensor("q_gamma", "[D]"),
          activationTensor("k_gamma", "[D]"),
          int32Tensor("positions", "[T]"),
          floatTensor("frequencies", "[1,D/2]"),
      },
      {
          activationTensor("qk", "[T,H*D+KVH*D]"),
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
          activationTensor("x", "[T,W]"),
          int32Tensor("positions", "[T]"),
          floatTensor("frequencies", "[1,D/2]"),
      },
      {
          activationTensor("y", "[T,W]"),
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
          laterFlagField("causal_tasks"),
      },
      {
          int32Tensor("seq_lens", "[B]"),
          int32Tensor("tokens", "[T]"),
          int32Tensor("extent", "[S]", {isSet("has_extent")}),
          int32Tensor("prefix", "[F]", {isSet("has_prefix")}),
      },
      {
          int32Tensor("cu_seqlens", "[B+1]"),
          int32Tensor("token_index", "[T]", {isSet("has_extent")}),
          int32Tensor("positions", "[T]", {isSet("has_positions")}),
          int32Tensor("tasks", "[L,4]", {isSet("has_tasks")}),
      },
      {},
      {},
      {
          {"H", "num_heads"},
      },
  };
}

inline OperatorSchema tokenRowsSchema() {
  return {
      "PadfreeTokenRows",
      {
          realField("scale"),
          flagField("has_moments"),
          flagField("schedules"),
          flagField("has_positions"),
          flagField("has_tasks"),
          integerField("num_heads", 1, 4096),
          laterFlagField("causal_tasks"),
      },
      {
          int32Tensor("ids", "[T]"),
          activationTensor("table", "[V,N]"),
          int32Tensor("seq_lens", "[B]", {isSet("schedules")}),
      },
      {
          activationTensor("y", "[T,N]"),
          floatTensor("moments", "[N/64,T,2]", {isSet("has_moments")}),
          int32Tensor("cu_seqlens", "[B+1]", {isSet("schedules")}),
          int32Tensor("positions", "[T]", {isSet("has_positions")}),
          int32Tensor("tasks", "[L,4]", {isSet("has_tasks")}),
      },
      {
          {isSet("has_positions"), isSet("schedules")},
          {isSet("has_tasks"), isSet("schedules")},
      },
      {
          {"has_moments", {"0", "1"}},
      },
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
          elementTensor("packed", "[T,...]"),
          int32Tensor("token_index", "[T]"),
          int32Tensor("seq_lens", "[B]"),
          int32Tensor("extent", "[*,S]"),
      },
      {
          elementTensor("x", "[B,S,...]"),
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
OperatorInfo linearInt8Operator();
OperatorInfo packOperator();
OperatorInfo poolOperator();
OperatorInfo postNormOperator();
OperatorInfo qkNormRotaryOperator();
OperatorInfo rotaryOperator();
OperatorInfo scheduleOperator();
OperatorInfo tokenRowsOperator();
OperatorInfo unpackOperator();

inline constexpr std::array kOperators = {
    attentionOperator,
    embeddingOperator,
    indexOperator,
    layerNormOperator,
    linearOperator,
    linearFp8Operator,
    linearInt8Operator,
    packOperator,
    poolOperator,
    postNormOperator,
    qkNormRotaryOperator,
    rotaryOperator,
    scheduleOperator,
    tokenRowsOperator,
    unpackOperator,
};

}  // namespace padfree
