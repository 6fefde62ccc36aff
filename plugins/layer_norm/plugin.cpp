// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "layer_norm/launch.h"
#include "shell/operator.h"
#include "shell/result_types.h"
#include "shell/text.h"

namespace padfree {
namespace {

class LayerNorm final : public Operator {
 public:
  explicit LayerNorm(const Attributes& attributes)
      : results_(attributes),
        kind_(results_.e4m3 || results_.fp32 ? TensorKind::kHalf : TensorKind::kActivation),
        x_(addInput("x", kind_, "[...,E]")),
        bias_(addInput("bias", kind_, "[E]", attributes.flag("has_bias"))),
        residual_(addInput("residual", kind_, "[...,E]", attributes.flag("has_residual"))),
        gamma_(addInput("gamma", kind_, "[E]")),
        beta_(addInput("beta", kind_, "[E]", attributes.flag("has_beta"))),
        cu_seqlens_(addInput("cu_seqlens", TensorKind::kInt32, "[B+1]", attributes.flag("has_first"))),
        pooler_weight_(addInput("pooler_weight", kind_, "[N,E]", attributes.flag("has_pooler"))),
        pooler_bias_(addInput("pooler_bias", kind_, "[N]", attributes.flag("has_pooler"))),
        y_(addOutput("y", kind_, "[...,E]", results_.activations)),
        y_e4m3_(addOutput("y_e4m3", TensorKind::kE4m3, "[...,E]", results_.e4m3)),
        y_fp32_(addOutput("y_fp32", TensorKind::kFloat, "[...,E]", results_.fp32)),
        sum_(addOutput("sum", kind_, "[...,E]", attributes.flag("has_sum"))),
        y_first_(addOutput("y_first", kind_, "[B,E]", attributes.flag("has_first") && !attributes.flag("has_pooler"))),
        pooled_(addOutput("pooled", TensorKind::kFloat, "[B,N]", attributes.flag("has_pooler"))),
        epsilon_(attributes.real("epsilon")),
        rms_(attributes.flag("rms")),
        early_lengths_(attributes.flag("early_lengths")) {
    if (cu_seqlens_ != kAbsent && y_fp32_ == kAbsent) {
      throw std::invalid_argument(
          "has_first is 1 without rows in float32; allowed: with results 'fp32' or 'act_fp32'; set one of these, or "
          "has_first to 0 and use PadfreePool");
    }
    if (pooled_ != kAbsent && (cu_seqlens_ == kAbsent || bias_ != kAbsent || residual_ != kAbsent)) {
      throw std::invalid_argument(
          "has_pooler is 1 without first tokens, or with something added to x; allowed: with has_first 1, has_bias 0 "
          "and has_residual 0; set these, or has_pooler to 0 and multiply y_first");
    }
  }

  void checkSizes(const Sizes& sizes) const override {
    constexpr int64_t kMultiple = 8;
    const int64_t E = sizes.get("E");
    if (pooled_ == kAbsent || E < 0 || E % kMultiple == 0) return;
    throw std::invalid_argument(text("E is ", E, " with has_pooler 1; allowed: multiples of ", kMultiple,
                                     "; set has_pooler to 0 and multiply y_first"));
  }

  std::vector<int32_t> measure(const ProfiledTensors&) const override {
    if (results_.e4m3) checkCapability(kLeastE4m3Version, kE4m3RowsNextStep);
    return {};
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    LayerNormParams params{};
    params.x = tensors.input(x_);
    params.bias = tensors.input(bias_);
    params.residual = tensors.input(residual_);
    params.gamma = tensors.input(gamma_);
    params.beta = tensors.input(beta_);
    params.y = tensors.output(y_);
    params.y_e4m3 = tensors.output(y_e4m3_);
    params.e4m3_factor = 1.f / results_.y_scale;
    params.y_fp32 = tensors.output<float>(y_fp32_);
    params.sum = tensors.output(sum_);
    params.y_first = tensors.output(y_first_);
    params.cu_seqlens = tensors.input<int>(cu_seqlens_);
    params.pooler.weight = tensors.input(pooler_weight_);
    params.pooler.bias = tensors.input(pooler_bias_);
    params.pooler.y = tensors.output<float>(pooled_);
    if (params.pooler.y) params.pooler.N = tensors.size(pooler_bias_, 0);
    if (params.cu_seqlens) params.B = tensors.size(cu_seqlens_, 0) - 1;
    params.rows = tensors.volume(x_, 0, tensors.rank(x_) - 1);
    params.E = tensors.size(x_, -1);
    params.epsilon = epsilon_;
    params.rms = rms_;
    params.early_lengths = early_lengths_;
    params.type = tensors.type(x_);
    return launchLayerNorm(params, stream);
  }

 private:
  const Results results_;
  const TensorKind kind_;  // of all tensors but cu_seqlens, y_e4m3, y_fp32 and pooled
  const int x_, bias_, residual_, gamma_, beta_, cu_seqlens_, pooler_weight_, pooler_bias_, y_, y_e4m3_, y_fp32_, sum_,
      y_first_, pooled_;
  const float epsilon_;
  const bool rms_, early_lengths_;
};

}  // namespace

OperatorInfo layerNormOperator() {
  return {"PadfreeLayerNorm",
          withResultsFields({nonNegativeRealField("epsilon"), flagField("rms"), flagField("has_bias"),
                             flagField("has_residual"), flagField("has_beta"), flagField("has_sum"),
                             flagField("has_first"), flagField("has_pooler"), flagField("early_lengths")},
                            {"fp32", "act_fp32"}),
          makeOperator<LayerNorm>};
}

}  // namespace padfree
