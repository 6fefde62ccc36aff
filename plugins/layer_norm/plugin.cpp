// SPDX-License-Identifier: Apache-2.0
#include "layer_norm/launch.h"
#include "shell/operator.h"

namespace padfree {
namespace {

class LayerNorm final : public Operator {
 public:
  explicit LayerNorm(const Attributes& attributes)
      : x_(addInput("x", TensorKind::kActivation, "[...,E]")),
        bias_(addInput("bias", TensorKind::kActivation, "[E]", attributes.flag("has_bias"))),
        residual_(addInput("residual", TensorKind::kActivation, "[...,E]", attributes.flag("has_residual"))),
        gamma_(addInput("gamma", TensorKind::kActivation, "[E]")),
        beta_(addInput("beta", TensorKind::kActivation, "[E]", attributes.flag("has_beta"))),
        y_(addOutput("y", TensorKind::kActivation, "[...,E]")),
        sum_(addOutput("sum", TensorKind::kActivation, "[...,E]", attributes.flag("has_sum"))),
        epsilon_(attributes.real("epsilon")),
        rms_(attributes.flag("rms")) {}

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    LayerNormParams params{};
    params.x = tensors.input(x_);
    params.bias = tensors.input(bias_);
    params.residual = tensors.input(residual_);
    params.gamma = tensors.input(gamma_);
    params.beta = tensors.input(beta_);
    params.y = tensors.output(y_);
    params.sum = tensors.output(sum_);
    params.rows = tensors.volume(x_, 0, tensors.rank(x_) - 1);
    params.E = tensors.size(x_, -1);
    params.epsilon = epsilon_;
    params.rms = rms_;
    params.type = tensors.type(x_);
    return launchLayerNorm(params, stream);
  }

 private:
  const int x_, bias_, residual_, gamma_, beta_, y_, sum_;
  const float epsilon_;
  const bool rms_;
};

}  // namespace

OperatorInfo layerNormOperator() {
  return {"PadfreeLayerNorm",
          {nonNegativeRealField("epsilon"), flagField("rms"), flagField("has_bias"), flagField("has_residual"),
           flagField("has_beta"), flagField("has_sum")},
          makeOperator<LayerNorm>};
}

}  // namespace padfree
