// SPDX-License-Identifier: Apache-2.0
#include "common/operator.h"
#include "schedule/launch.h"

namespace padfree {
namespace {

class Schedule final : public Operator {
 public:
  explicit Schedule(const Attributes& attributes)
      : seq_lens_(addInput("seq_lens", TensorKind::kInt32, "[B]")),
        tokens_(addInput("tokens", TensorKind::kInt32, "[T]")),
        extent_(addInput("extent", TensorKind::kInt32, "[S]", attributes.flag("has_extent"))),
        cu_seqlens_(addOutput("cu_seqlens", TensorKind::kInt32, "[B+1]")),
        token_index_(addOutput("token_index", TensorKind::kInt32, "[T]", attributes.flag("has_extent"))) {}

  void checkSizes(const Sizes& sizes) const override {
    if (extent_ != kAbsent) sizes.checkProduct({"B", "S"});
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    ScheduleParams params{};
    params.seq_lens = tensors.input<int>(seq_lens_);
    params.cu_seqlens = tensors.output<int>(cu_seqlens_);
    params.token_index = tensors.output<int>(token_index_);
    params.B = tensors.size(seq_lens_, 0);
    params.T = tensors.size(tokens_, 0);
    params.S = tensors.size(extent_, 0);
    return launchSchedule(params, stream);
  }

 private:
  const int seq_lens_, tokens_, extent_, cu_seqlens_, token_index_;
};

}  // namespace

OperatorInfo scheduleOperator() {
  return {"PadfreeSchedule", {flagField("has_extent")}, makeOperator<Schedule>};
}

}  // namespace padfree
