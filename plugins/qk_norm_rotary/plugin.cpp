// SPDX-License-Identifier: Apache-2.0
#include "qk_norm_rotary/launch.h"
#include "shell/operator.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

class QkNormRotary final : public Operator {
 public:
  using Operator::Operator;

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    QkNormRotaryParams params{};
    params.qkv = tensors.input(qkv_);
    params.q_gamma = tensors.input(q_gamma_);
    params.k_gamma = tensors.input(k_gamma_);
    params.positions = tensors.input<int>(positions_);
    params.frequencies = tensors.input<float>(frequencies_);
    params.qk = tensors.output(qk_);
    params.T = tensors.size(qkv_, 0);
    params.W = tensors.size(qkv_, 1);
    params.H = num_heads_;
    params.kv_heads = num_kv_heads_;
    params.D = head_size_;
    params.epsilon = epsilon_;
    params.interleaved = interleaved_;
    params.type = tensors.type(qkv_);
    return launchQkNormRotary(params, stream);
  }

 private:
  const int num_heads_ = attributes_.integer("num_heads"), num_kv_heads_ = attributes_.integer("num_kv_heads"),
            head_size_ = attributes_.integer("head_size");
  const float epsilon_ = attributes_.real("epsilon");
  const bool interleaved_ = attributes_.choice("pairing") == "interleaved";
  const int qkv_ = input("qkv"), q_gamma_ = input("q_gamma"), k_gamma_ = input("k_gamma"),
            positions_ = input("positions"), frequencies_ = input("frequencies"), qk_ = output("qk");
};

}  // namespace

OperatorInfo qkNormRotaryOperator() {
  return {qkNormRotarySchema(), makeOperator<QkNormRotary>};
}

}  // namespace padfree
