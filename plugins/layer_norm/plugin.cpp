// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"
#include "layer_norm/launch.h"
#include "shell/operator.h"
#include "shell/result_types.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

class LayerNorm final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override {
    constexpr int64_t kMultiple = 8;
    const int64_t E = sizes.get("E");
    if (pooled_ == kAbsent || E < 0 || E % kMultiple == 0) return;
    throwInvalid("E is ", E, " with has_pooler 1; allowed: multiples of ", kMultiple,
                 "; set has_pooler to 0 and multiply y_first");
  }

  std::vector<int32_t> measure(const ProfiledTensors&) const override {
    if (results_.e4m3) checkCapability(kMinE4m3Version, kE4m3RowsNextStep);
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
  const Results results_{attributes_};
  const int x_ = input("x"), bias_ = input("bias"), residual_ = input("residual"), gamma_ = input("gamma"),
            beta_ = input("beta"), cu_seqlens_ = input("cu_seqlens"), pooler_weight_ = input("pooler_weight"),
            pooler_bias_ = input("pooler_bias"), y_ = output("y"), y_e4m3_ = output("y_e4m3"),
            y_fp32_ = output("y_fp32"), sum_ = output("sum"), y_first_ = output("y_first"), pooled_ = output("pooled");
  const float epsilon_ = attributes_.real("epsilon");
  const bool rms_ = attributes_.flag("rms"), early_lengths_ = attributes_.flag("early_lengths");
};

}  // namespace

OperatorInfo layerNormOperator() {
  return {layerNormSchema(), makeOperator<LayerNorm>};
}

}  // namespace padfree
