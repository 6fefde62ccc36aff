// SPDX-License-Identifier: Apache-2.0
#include "index/launch.h"
#include "shell/operator.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

class Index final : public Operator {
 public:
  Index(const OperatorSchema& schema, const Attributes& attributes) : Operator(schema, attributes) {
    countSize({"T", output("num_tokens"), {"B", "S"}});
  }

  void checkSizes(const Sizes& sizes) const override { sizes.checkProduct({"B", "S"}); }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    IndexParams params{};
    params.mask = tensors.input<int>(0);
    params.token_index = tensors.output<int>(0);
    params.seq_lens = tensors.output<int>(1);
    params.num_tokens = tensors.output<int>(2);
    params.B = tensors.size(0, 0);
    params.S = tensors.size(0, 1);
    return launchIndex(params, stream);
  }
};

}  // namespace

OperatorInfo indexOperator() {
  return {indexSchema(), makeOperator<Index>};
}

}  // namespace padfree
