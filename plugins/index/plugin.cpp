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
    const int B = tensors.size(0, 0), S = tensors.size(0, 1);
    return launchIndex(
        {tensors.input<int>(0), tensors.output<int>(0), tensors.output<int>(1), tensors.output<int>(2), B, S}, stream);
  }
};

}  // namespace

OperatorInfo indexOperator() {
  return {indexSchema(), makeOperator<Index>};
}

}  // namespace padfree
