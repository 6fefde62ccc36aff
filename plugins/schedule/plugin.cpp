// SPDX-License-Identifier: Apache-2.0
#include "schedule/launch.h"
#include "schedule/task_list.h"
#include "shell/operator.h"

namespace padfree {
namespace {

class Schedule final : public Operator {
 public:
  explicit Schedule(const Attributes& attributes)
      : seq_lens_(addInput("seq_lens", TensorKind::kInt32, "[B]")),
        tokens_(addInput("tokens", TensorKind::kInt32, "[T]")),
        extent_(addInput("extent", TensorKind::kInt32, "[S]", attributes.flag("has_extent"))),
        cu_seqlens_(addOutput("cu_seqlens", TensorKind::kInt32, "[B+1]")),
        token_index_(addOutput("token_index", TensorKind::kInt32, "[T]", attributes.flag("has_extent"))),
        positions_(addOutput("positions", TensorKind::kInt32, "[T]", attributes.flag("has_positions"))),
        tasks_(addOutput("tasks", TensorKind::kInt32, "[L,4]", attributes.flag("has_tasks"))),
        num_heads_(attributes.integer("num_heads")) {}

  void checkSizes(const Sizes& sizes) const override {
    if (extent_ != kAbsent) sizes.checkProduct({"B", "S"});
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
    return launchSchedule(params, stream);
  }

 private:
  const int seq_lens_, tokens_, extent_, cu_seqlens_, token_index_, positions_, tasks_;
  const int num_heads_;
};

}  // namespace

OperatorInfo scheduleOperator() {
  return {"PadfreeSchedule",
          {flagField("has_extent"), flagField("has_positions"), flagField("has_tasks"),
           integerField("num_heads", 1, kMaxTaskHeads)},
          makeOperator<Schedule>};
}

}  // namespace padfree
