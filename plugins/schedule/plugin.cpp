// SPDX-License-Identifier: Apache-2.0
#include "attention/prefix.h"
#include "schedule/launch.h"
#include "schedule/task_list.h"
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
    if (tasks_ != kAbsent) checkTaskList(sizes, num_heads_);
  }

  void deriveSizes(SizeExpressions& sizes) const override {
    if (tasks_ != kAbsent) deriveTaskList(sizes, num_heads_);
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    ScheduleParams params{};
    params.seq_lens = tensors.input<int>(seq_lens_);
    params.cu_seqlens = tensors.output<int>(cu_seqlens_);
    params.token_index = tensors.output<int>(token_index_);
    params.positions = tensors.output<int>(positions_);
    params.B = tensors.size(seq_lens_, 0);
    params.T = tensors.size(tokens_, 0);
    params.S = tensors.size(extent_, 0);
    params.tasks = tensors.output<AttentionTask>(tasks_);
    params.H = num_heads_;
    params.num_tasks = taskListRoom(params.T, params.B, params.H);
    params.prefix = prefixOf(tensors, prefix_, params.B);
    params.causal = causal_tasks_;
    return launchSchedule(params, stream);
  }

 private:
  const int seq_lens_ = input("seq_lens"), tokens_ = input("tokens"), extent_ = input("extent"),
            cu_seqlens_ = output("cu_seqlens"), token_index_ = output("token_index"), positions_ = output("positions"),
            tasks_ = output("tasks"), prefix_ = input("prefix");
  const int num_heads_ = attributes_.integer("num_heads");
  const bool causal_tasks_ = attributes_.flag("causal_tasks");
};

}  // namespace

OperatorInfo scheduleOperator() {
  return {scheduleSchema(), makeOperator<Schedule>};
}

}  // namespace padfree
