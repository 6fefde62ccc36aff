// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"
#include "linear/launch.h"
#include "schedule/task_list.h"
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
    if (tasks_ != kAbsent) checkTaskList(sizes, num_heads_);
  }

  void deriveSizes(SizeExpressions& sizes) const override {
    if (tasks_ != kAbsent) deriveTaskList(sizes, num_heads_);
  }

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
    if (cu_seqlens_ != kAbsent) {
      ScheduleParams& schedule = params.schedule;
      schedule.seq_lens = tensors.input<int>(seq_lens_);
      schedule.cu_seqlens = tensors.output<int>(cu_seqlens_);
      schedule.positions = tensors.output<int>(positions_);
      schedule.tasks = tensors.output<AttentionTask>(tasks_);
      schedule.B = tensors.size(seq_lens_, 0);
      schedule.T = params.T;
      schedule.H = num_heads_;
      schedule.num_tasks = taskListRoom(schedule.T, schedule.B, num_heads_);
      schedule.causal = causal_tasks_;
    }
    return launchTokenRows(params, stream);
  }

 private:
  const int ids_ = input("ids"), table_ = input("table"), seq_lens_ = input("seq_lens"), y_ = output("y"),
            moments_ = output("moments"), cu_seqlens_ = output("cu_seqlens"), positions_ = output("positions"),
            tasks_ = output("tasks");
  const int num_heads_ = attributes_.integer("num_heads");
  const bool causal_tasks_ = attributes_.flag("causal_tasks");
  const float scale_ = attributes_.real("scale");
};

}  // namespace

OperatorInfo tokenRowsOperator() {
  return {tokenRowsSchema(), makeOperator<TokenRows>};
}

}  // namespace padfree
