// SPDX-License-Identifier: Apache-2.0
#include "pack/launch.h"
#include "shell/operator.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

class Pack final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override { sizes.checkProduct({"B", "S"}); }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    const int64_t num_slots = tensors.volume(x_, 0, 2);
    const int64_t row_bytes = tensors.volume(x_, 2, tensors.rank(x_)) * sizeOf(tensors.type(x_));
    return launchPack({tensors.input(x_), tensors.input<int>(token_index_), tensors.output(packed_),
                       tensors.size(token_index_, 0), num_slots, row_bytes},
                      stream);
  }

 private:
  const int x_ = input("x"), token_index_ = input("token_index"), packed_ = output("packed");
};

}  // namespace

OperatorInfo packOperator() {
  return {packSchema(), makeOperator<Pack>};
}

}  // namespace padfree
