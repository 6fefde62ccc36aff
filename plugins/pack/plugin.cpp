// SPDX-License-Identifier: Apache-2.0
#include "pack/launch.h"
#include "shell/operator.h"

namespace padfree {
namespace {

class Pack final : public Operator {
 public:
  explicit Pack(const Attributes&)
      : x_(addInput("x", TensorKind::kElement, "[B,S,...]")),
        token_index_(addInput("token_index", TensorKind::kInt32, "[T]")),
        packed_(addOutput("packed", TensorKind::kElement, "[T,...]")) {}

  void checkSizes(const Sizes& sizes) const override { sizes.checkProduct({"B", "S"}); }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    PackParams params{};
    params.x = tensors.input(x_);
    params.token_index = tensors.input<int>(token_index_);
    params.y = tensors.output(packed_);
    params.T = tensors.size(token_index_, 0);
    params.num_slots = tensors.volume(x_, 0, 2);
    params.row_bytes = tensors.volume(x_, 2, tensors.rank(x_)) * sizeOf(tensors.type(x_));
    return launchPack(params, stream);
  }

 private:
  const int x_, token_index_, packed_;
};

}  // namespace

OperatorInfo packOperator() {
  return {"PadfreePack", {}, makeOperator<Pack>};
}

}  // namespace padfree
