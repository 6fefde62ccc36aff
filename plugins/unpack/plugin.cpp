// SPDX-License-Identifier: Apache-2.0
#include "shell/operator.h"
#include "shell/schemas.h"
#include "unpack/launch.h"

namespace padfree {
namespace {

class Unpack final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override { sizes.checkProduct({"B", "S"}); }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    const int64_t num_slots = static_cast<int64_t>(tensors.size(seq_lens_, 0)) * tensors.size(extent_, -1);
    const int64_t row_bytes = tensors.volume(packed_, 1, tensors.rank(packed_)) * sizeOf(tensors.type(packed_));
    return launchUnpack({tensors.input(packed_), tensors.input<int>(token_index_), tensors.output(x_),
                         tensors.size(token_index_, 0), num_slots, row_bytes},
                        stream);
  }

 private:
  const int packed_ = input("packed"), token_index_ = input("token_index"), seq_lens_ = input("seq_lens"),
            extent_ = input("extent"), x_ = output("x");
};

}  // namespace

OperatorInfo unpackOperator() {
  return {unpackSchema(), makeOperator<Unpack>};
}

}  // namespace padfree
