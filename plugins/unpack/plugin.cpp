// SPDX-License-Identifier: Apache-2.0
#include "shell/operator.h"
#include "unpack/launch.h"

namespace padfree {
namespace {

class Unpack final : public Operator {
 public:
  explicit Unpack(const Attributes&)
      : packed_(addInput("packed", TensorKind::kElement, "[T,...]")),
        token_index_(addInput("token_index", TensorKind::kInt32, "[T]")),
        seq_lens_(addInput("seq_lens", TensorKind::kInt32, "[B]")),
        extent_(addInput("extent", TensorKind::kInt32, "[*,S]")),
        x_(addOutput("x", TensorKind::kElement, "[B,S,...]")) {}

  void checkSizes(const Sizes& sizes) const override { sizes.checkProduct({"B", "S"}); }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    UnpackParams params{};
    params.packed = tensors.input(packed_);
    params.token_index = tensors.input<int>(token_index_);
    params.y = tensors.output(x_);
    params.T = tensors.size(token_index_, 0);
    params.num_slots = static_cast<int64_t>(tensors.size(seq_lens_, 0)) * tensors.size(extent_, -1);
    params.row_bytes = tensors.volume(packed_, 1, tensors.rank(packed_)) * sizeOf(tensors.type(packed_));
    return launchUnpack(params, stream);
  }

 private:
  const int packed_, token_index_, seq_lens_, extent_, x_;
};

}  // namespace

OperatorInfo unpackOperator() {
  return {"PadfreeUnpack", {}, makeOperator<Unpack>};
}

}  // namespace padfree
