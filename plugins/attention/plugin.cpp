// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "attention/launch.h"
#include "attention/prefix.h"
#include "common/launch.h"
#include "common/text.h"
#include "shell/operator.h"
#include "shell/result_types.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

// One of Q, K, V: the input that holds it, where its elements and biases begin, and how far tokens and heads lie apart,
// in elements.
struct OperandLayout {
  int input;
  int64_t offset, bias_offset, token_stride, head_stride;
};
using QkvLayout = std::array<OperandLayout, 3>;

QkvLayout layoutOf(const std::string& name, int64_t heads, int64_t kv_heads, int64_t head_size) {
  const int64_t q = heads * head_size, kv = kv_heads * head_size, both = q + kv, all = both + kv;
  if (name == "H3D") {
    const int64_t size = head_size, three = 3 * head_size;
    return {{{0, 0, 0, all, three}, {0, size, size, all, three}, {0, 2 * size, 2 * size, all, three}}};
  }
  if (name == "3HD") return {{{0, 0, 0, all, head_size}, {0, q, q, all, head_size}, {0, both, both, all, head_size}}};
  if (name == "2HD") return {{{0, 0, 0, both, head_size}, {0, q, q, both, head_size}, {1, both, both, all, head_size}}};
  return {{{0, 0, 0, q, head_size}, {1, 0, q, kv, head_size}, {2, 0, both, kv, head_size}}};  // "separate"
}

AttentionBias biasOf(const std::string& name) {
  if (name == "slope") return AttentionBias::kSlope;
  if (name == "distance") return AttentionBias::kDistance;
  return name == "disentangled" ? AttentionBias::kDisentangled : AttentionBias::kNone;
}

const void* advance(const void* data, int64_t elements, DataType type) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + elements * sizeOf(type);
}

class Attention final : public Operator {
 public:
  Attention(const OperatorSchema& schema, const Attributes& attributes) : Operator(schema, attributes) {
    if (num_heads_ % num_kv_heads_ != 0) {
      throwInvalid("num_kv_heads is ", num_kv_heads_, "; allowed: divisors of num_heads = ", num_heads_,
                   kAttributeNextStep);
    }
    if (attributes.choice("qkv_layout") == "H3D" && num_kv_heads_ != num_heads_) {
      throwInvalid("num_kv_heads is ", num_kv_heads_, " with num_heads ", num_heads_,
                   " and qkv_layout \"H3D\"; allowed: equal numbers, or another qkv_layout", kAttributeNextStep);
    }
    if (!(scale_ > 0.f)) {
      throwInvalid("scale is ", scale_, "; allowed: above 0", kAttributeNextStep);
    }
    checkDisentangled();
  }

  void checkSizes(const Sizes& sizes) const override {
    const int64_t T = sizes.get("T"), B = sizes.get("B");
    if (T < 0 || B < 0) return;
    if (const int64_t blocks = attentionBlocks(T, B, num_heads_); blocks > kMaxGridX) {
      throwInvalid("T = ", T, ", B = ", B, " and num_heads = ", num_heads_, " take ", blocks,
                   " blocks; allowed: up to ", kMaxGridX, "; use smaller batches");
    }
    checkPrefix(sizes, B);
    if (tasks_ == kAbsent || sizes.get("L") < 0) return;
    const int64_t entries = taskListEntries(T, B, num_heads_);
    if (sizes.get("L") != entries) {
      throwInvalid("input tasks has ", sizes.get("L"), " entries; allowed: ", entries, " for T = ", T, ", B = ", B,
                   " and num_heads = ", num_heads_, "; take it from a PadfreeSchedule with this num_heads");
    }
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    AttentionParams params{};
    params.type = tensors.type(0);
    AttentionOperand* const operands[] = {&params.q, &params.k, &params.v};
    for (int part = 0; part < 3; ++part) {
      const void* data = advance(tensors.input(layout_[part].input), layout_[part].offset, params.type);
      const void* bias = advance(tensors.input(qkv_bias_), layout_[part].bias_offset, params.type);
      if (!isAligned16(data) || !isAligned16(bias)) return cudaErrorMisalignedAddress;
      *operands[part] = {data, bias, layout_[part].token_stride, layout_[part].head_stride, layout_[part].head_stride};
    }
    params.cu_seqlens = tensors.input<int>(cu_seqlens_);
    params.tasks = tensors.input<AttentionTask>(tasks_);
    params.num_tasks = tensors.size(tasks_, 0) - 1;
    params.y = tensors.output(0);
    if (!isAligned16(params.y)) return cudaErrorMisalignedAddress;
    params.T = tensors.size(0, 0);
    params.B = tensors.size(cu_seqlens_, 0) - 1;
    params.H = num_heads_;
    params.kv_heads = num_kv_heads_;
    params.D = head_size_;
    params.max_seq_len = max_seq_len_;
    params.scale = scale_;
    params.window_left = window_left_;
    params.window_right = window_right_;
    params.bias = bias_kind_;
    params.bias_range = bias_range_;
    params.slopes = tensors.input<float>(slopes_);
    params.distance_bias = tensors.input<float>(distance_bias_);
    params.k_position = tensors.input(k_position_);
    params.q_position = tensors.input(q_position_);
    params.e4m3_factor = quantized_ ? 1.f / y_scale_ : 0.f;
    params.early_lengths = early_lengths_;
    params.prefix = prefixOf(tensors, prefix_, params.B);
    return launchAttention(params, stream);
  }

 private:
  void checkDisentangled() const {
    if (bias_kind_ != AttentionBias::kDisentangled) return;
    if (num_kv_heads_ != num_heads_) {
      throwInvalid("num_kv_heads is ", num_kv_heads_, " with num_heads ", num_heads_,
                   " and bias \"disentangled\"; allowed: equal numbers", kAttributeNextStep);
    }
    if (head_size_ > kMaxDisentangledHeadSize) {
      throwInvalid("head_size is ", head_size_, " with bias \"disentangled\"; allowed: up to ",
                   kMaxDisentangledHeadSize, kAttributeNextStep);
    }
  }

  const int num_heads_ = attributes_.integer("num_heads"), num_kv_heads_ = attributes_.integer("num_kv_heads"),
            head_size_ = attributes_.integer("head_size"), max_seq_len_ = attributes_.integer("max_seq_len");
  const int window_left_ = attributes_.integer("window_left"), window_right_ = attributes_.integer("window_right"),
            bias_range_ = attributes_.integer("bias_range");
  const float scale_ = attributes_.real("scale"), y_scale_ = attributes_.real("y_scale");
  const bool quantized_ = attributes_.flag("quantized"), early_lengths_ = attributes_.flag("early_lengths");
  const AttentionBias bias_kind_ = biasOf(attributes_.choice("bias"));
  const QkvLayout layout_ = layoutOf(attributes_.choice("qkv_layout"), num_heads_, num_kv_heads_, head_size_);
  const int qkv_bias_ = input("qkv_bias"), cu_seqlens_ = input("cu_seqlens"), tasks_ = input("tasks"),
            slopes_ = input("slopes"), distance_bias_ = input("distance_bias"), k_position_ = input("k_position"),
            q_position_ = input("q_position"), prefix_ = input("prefix");
};

}  // namespace

OperatorInfo attentionOperator() {
  return {attentionSchema(), makeOperator<Attention>};
}

}  // namespace padfree
