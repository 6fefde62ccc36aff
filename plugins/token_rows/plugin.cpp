// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"
#include "linear/launch.h"
#include "schedule/outputs.h"
#include "shell/operator.h"
#include "shell/schemas.h"
#include "token_rows/launch.h"

namespace padfree {
namespace {

class TokenRows final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override {
    const int64_t N = sizes.get("N");
    if (N >= 0 && N % kMomentFeatures != 0) {
      throwInvalid("N is ", N, "; allowed: multiples of ", kMomentFeatures,
                   "; rewrite the model again, or with --norms separate");
    }
    schedule_.checkSizes(sizes);
  }

  void deriveSizes(SizeExpressions& sizes) const override { schedule_.deriveSizes(sizes); }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    TokenRowsParams params{};
    params.ids = tensors.input<int>(ids_);
    params.table = tensors.input(table_);
    params.y = tensors.output(y_);
    params.moments = tensors.output<float>(moments_);
    params.T = tensors.size(ids_, 0);
    params.V = tensors.size(table_, 0);
    params.N = tensors.size(table_, 1);
    params.scale = scale_;
    params.type = tensors.type(table_);
    params.schedule = schedule_.paramsOf(tensors, params.T);
    return launchTokenRows(params, stream);
  }

 private:
  const int ids_ = input("ids"), table_ = input("table"), y_ = output("y"), moments_ = output("moments");
  const ScheduleOutputs schedule_{attributes_, input("seq_lens"), output("cu_seqlens"), output("positions"),
                                  output("tasks")};
  const float scale_ = attributes_.real("scale");
};

}  // namespace

OperatorInfo tokenRowsOperator() {
  return {tokenRowsSchema(), makeOperator<TokenRows>};
}

}  // namespace padfree
