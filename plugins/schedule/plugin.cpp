// SPDX-License-Identifier: Apache-2.0
#include "attention/prefix.h"
#include "schedule/launch.h"
#include "schedule/outputs.h"
#include "shell/operator.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

class Schedule final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override {
    if (extent_ != kAbsent) sizes.checkProduct({"B", "S"});
    checkPrefix(sizes, sizes.get("B"));
    schedule_.checkSizes(sizes);
  }

  void deriveSizes(SizeExpressions& sizes) const override { schedule_.deriveSizes(sizes); }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    ScheduleParams params = schedule_.paramsOf(tensors, tensors.size(tokens_, 0));
    params.token_index = tensors.output<int>(token_index_);
    params.S = tensors.size(extent_, 0);
    params.prefix = prefixOf(tensors, prefix_, params.B);
    return launchSchedule(params, stream);
  }

 private:
  const int tokens_ = input("tokens"), extent_ = input("extent"), prefix_ = input("prefix"),
            token_index_ = output("token_index");
  const ScheduleOutputs schedule_{attributes_, input("seq_lens"), output("cu_seqlens"), output("positions"),
                                  output("tasks")};
};

}  // namespace

OperatorInfo scheduleOperator() {
  return {scheduleSchema(), makeOperator<Schedule>};
}

}  // namespace padfree
