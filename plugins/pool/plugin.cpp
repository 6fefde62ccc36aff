// SPDX-License-Identifier: Apache-2.0
#include "pool/launch.h"
#include "shell/operator.h"

namespace padfree {
namespace {

PoolMode modeOf(const std::string& name) {
  if (name == "first") return PoolMode::kFirst;
  if (name == "last") return PoolMode::kLast;
  return name == "mean" ? PoolMode::kMean : PoolMode::kMax;
}

class Pool final : public Operator {
 public:
  explicit Pool(const Attributes& attributes)
      : x_(addInput("x", TensorKind::kActivation, "[T,E]")),
        cu_seqlens_(addInput("cu_seqlens", TensorKind::kInt32, "[B+1]")),
        y_(addOutput("y", TensorKind::kActivation, "[B,E]")),
        mode_(modeOf(attributes.choice("mode"))),
        normalize_(attributes.flag("normalize")) {}

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    PoolParams params{};
    params.x = tensors.input(x_);
    params.cu_seqlens = tensors.input<int>(cu_seqlens_);
    params.y = tensors.output(y_);
    params.T = tensors.size(x_, 0);
    params.B = tensors.size(cu_seqlens_, 0) - 1;
    params.E = tensors.size(x_, 1);
    params.mode = mode_;
    params.normalize = normalize_;
    params.type = tensors.type(x_);
    return launchPool(params, stream);
  }

 private:
  const int x_, cu_seqlens_, y_;
  const PoolMode mode_;
  const bool normalize_;
};

}  // namespace

OperatorInfo poolOperator() {
  return {"PadfreePool",
          {choiceField("mode", {"first", "last", "mean", "max"}), flagField("normalize")},
          makeOperator<Pool>};
}

}  // namespace padfree
