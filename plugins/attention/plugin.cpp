// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "attention/launch.h"
#include "common/launch.h"
#include "shell/operator.h"
#include "shell/text.h"

namespace padfree {
namespace {

constexpr int kMaxHeads = 4096;  // keeps 3*H*D and every stride far inside an int

// How far Q, K and V lie apart, and heads and tokens in each of them, in elements.
struct QkvLayout {
  int64_t part_stride, head_stride, token_stride;
};

QkvLayout layoutOf(const std::string& name, int64_t heads, int64_t head_size) {
  if (name == "H3D") return {head_size, 3 * head_size, 3 * heads * head_size};
  if (name == "3HD") return {heads * head_size, head_size, 3 * heads * head_size};
  return {heads * head_size, head_size, heads * head_size};  // "separate": part_stride is the biases' alone
}

const void* advance(const void* data, int64_t elements, DataType type) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + elements * sizeOf(type);
}

class Attention final : public Operator {
 public:
  explicit Attention(const Attributes& attributes)
      : num_heads_(attributes.integer("num_heads")),
        head_size_(attributes.integer("head_size")),
        max_seq_len_(attributes.integer("max_seq_len")),
        scale_(attributes.real("scale")),
        separate_(attributes.choice("qkv_layout") == "separate"),
        layout_(layoutOf(attributes.choice("qkv_layout"), num_heads_, head_size_)) {
    const int hidden = num_heads_ * head_size_;
    const std::string part = text("[T,", hidden, "]");
    if (separate_) {
      for (const char* name : {"q", "k", "v"}) addInput(name, TensorKind::kActivation, part);
    } else {
      addInput("qkv", TensorKind::kActivation, text("[T,", 3 * hidden, "]"));
    }
    bias_ = addInput("qkv_bias", TensorKind::kActivation, text("[", 3 * hidden, "]"), attributes.flag("has_qkv_bias"));
    cu_seqlens_ = addInput("cu_seqlens", TensorKind::kInt32, "[B+1]");
    tasks_ = addInput("tasks", TensorKind::kInt32, "[L,4]", attributes.flag("has_tasks"));
    addOutput("y", TensorKind::kActivation, part);
  }

  void checkSizes(const Sizes& sizes) const override {
    const int64_t T = sizes.get("T"), B = sizes.get("B");
    if (T < 0 || B < 0) return;
    if (const int64_t blocks = attentionBlocks(T, B, num_heads_); blocks > kMaxGridX) {
      throw std::invalid_argument(text("T = ", T, ", B = ", B, " and num_heads = ", num_heads_, " take ", blocks,
                                       " blocks; allowed: up to ", kMaxGridX, "; use smaller batches"));
    }
    if (tasks_ == kAbsent || sizes.get("L") < 0) return;
    const int64_t needed = taskListEntries(T, B, num_heads_);
    if (sizes.get("L") != needed) {
      throw std::invalid_argument(text("input tasks has ", sizes.get("L"), " entries; allowed: ", needed,
                                       " for T = ", T, ", B = ", B, " and num_heads = ", num_heads_,
                                       "; take it from a PadfreeSchedule with this num_heads"));
    }
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    AttentionParams params{};
    params.type = tensors.type(0);
    AttentionOperand* const operands[] = {&params.q, &params.k, &params.v};
    for (int part = 0; part < 3; ++part) {
      const void* data =
          separate_ ? tensors.input(part) : advance(tensors.input(0), part * layout_.part_stride, params.type);
      const void* bias = advance(tensors.input(bias_), part * layout_.part_stride, params.type);
      if (!isAligned16(data) || !isAligned16(bias)) return cudaErrorMisalignedAddress;
      *operands[part] = {data, bias, layout_.token_stride, layout_.head_stride, layout_.head_stride};
    }
    params.cu_seqlens = tensors.input<int>(cu_seqlens_);
    params.tasks = tensors.input<AttentionTask>(tasks_);
    params.num_tasks = tensors.size(tasks_, 0) - 1;
    params.y = tensors.output(0);
    if (!isAligned16(params.y)) return cudaErrorMisalignedAddress;
    params.T = tensors.size(0, 0);
    params.B = tensors.size(cu_seqlens_, 0) - 1;
    params.H = num_heads_;
    params.kv_heads = num_heads_;
    params.D = head_size_;
    params.max_seq_len = max_seq_len_;
    params.scale = scale_;
    params.window_left = params.window_right = -1;
    params.bias = AttentionBias::kNone;
    return launchAttention(params, stream);
  }

 private:
  const int num_heads_, head_size_, max_seq_len_;
  const float scale_;
  const bool separate_;
  const QkvLayout layout_;
  int bias_, cu_seqlens_, tasks_;
};

}  // namespace

OperatorInfo attentionOperator() {
  constexpr int kInt32Max = std::numeric_limits<int32_t>::max();
  return {"PadfreeAttention",
          {integerField("num_heads", 1, kMaxHeads), integerField("head_size", 8, kMaxHeadSize, 8), realField("scale"),
           choiceField("qkv_layout", {"3HD", "H3D", "separate"}), flagField("has_qkv_bias"), flagField("has_tasks"),
           integerField("max_seq_len", 0, kInt32Max)},
          makeOperator<Attention>};
}

}  // namespace padfree
