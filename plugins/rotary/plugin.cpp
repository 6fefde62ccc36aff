// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"
#include "rotary/launch.h"
#include "shell/operator.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

class Rotary final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override {
    const int64_t width = sizes.get("W"), rotated_columns = int64_t{num_heads_} * head_size_;
    if (width < 0 || rotated_columns <= width) return;
    throwInvalid("num_heads = ", num_heads_, " and head_size = ", head_size_, " take ", rotated_columns,
                 " columns; allowed: up to W = ", width, "; rewrite the model again");
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    RotaryParams params{};
    params.x = tensors.input(x_);
    params.positions = tensors.input<int>(positions_);
    params.frequencies = tensors.input<float>(frequencies_);
    params.y = tensors.output(y_);
    params.T = tensors.size(x_, 0);
    params.W = tensors.size(x_, 1);
    params.H = num_heads_;
    params.D = head_size_;
    params.interleaved = interleaved_;
    params.type = tensors.type(x_);
    return launchRotary(params, stream);
  }

 private:
  const int head_size_ = attributes_.integer("head_size"), num_heads_ = attributes_.integer("num_heads");
  const bool interleaved_ = attributes_.choice("pairing") == "interleaved";
  const int x_ = input("x"), positions_ = input("positions"), frequencies_ = input("frequencies"), y_ = output("y");
};

}  // namespace

OperatorInfo rotaryOperator() {
  return {rotarySchema(), makeOperator<Rotary>};
}

}  // namespace padfree
