// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "pool/launch.h"
#include "shell/operator.h"
#include "shell/text.h"

namespace padfree {
namespace {

PoolMode modeOf(const std::string& name) {
  if (name == "first") return PoolMode::kFirst;
  if (name == "last") return PoolMode::kLast;
  if (name == "each") return PoolMode::kEach;
  return name == "mean" ? PoolMode::kMean : PoolMode::kMax;
}

constexpr int64_t kNormedMultiple = 8, kMostNormed = 1024;

class Pool final : public Operator {
 public:
  explicit Pool(const Attributes& attributes)
      : wide_(attributes.choice("results") == "fp32"),
        kind_(wide_ || attributes.flag("has_norm") ? TensorKind::kHalf : TensorKind::kActivation),
        x_(addInput("x", kind_, attributes.choice("mode") == "each" ? "[B,E]" : "[T,E]")),
        cu_seqlens_(addInput("cu_seqlens", TensorKind::kInt32, "[B+1]")),
        gamma_(addInput("gamma", kind_, "[E]", attributes.flag("has_norm"))),
        beta_(addInput("beta", kind_, "[E]", attributes.flag("has_beta"))),
        y_(addOutput("y", kind_, "[B,E]", !wide_)),
        y_fp32_(addOutput("y_fp32", TensorKind::kFloat, "[B,E]", wide_)),
        mode_(modeOf(attributes.choice("mode"))),
        normalize_(attributes.flag("normalize")),
        epsilon_(attributes.real("epsilon")),
        rms_(attributes.flag("rms")),
        early_lengths_(attributes.flag("early_lengths")) {
    if (gamma_ == kAbsent && beta_ != kAbsent) {
      throw std::invalid_argument(
          "has_beta is 1 with has_norm 0; allowed: a beta of a norm; set has_norm to 1, or has_beta to 0");
    }
    if (gamma_ != kAbsent && mode_ == PoolMode::kMax) {
      throw std::invalid_argument(
          "has_norm is 1 with mode 'max'; allowed: 'first', 'last', 'mean' and 'each'; set has_norm to 0 and use "
          "PadfreeLayerNorm");
    }
  }

  void checkSizes(const Sizes& sizes) const override {
    const int64_t E = sizes.get("E");
    if (gamma_ == kAbsent || E < 0 || (E % kNormedMultiple == 0 && E <= kMostNormed)) return;
    throw std::invalid_argument(text("E is ", E, " with has_norm 1; allowed: multiples of ", kNormedMultiple, " up to ",
                                     kMostNormed, "; set has_norm to 0 and use PadfreeLayerNorm"));
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    PoolParams params{};
    params.x = tensors.input(x_);
    params.cu_seqlens = tensors.input<int>(cu_seqlens_);
    params.y = tensors.output(y_);
    params.y_fp32 = tensors.output<float>(y_fp32_);
    params.gamma = tensors.input(gamma_);
    params.beta = tensors.input(beta_);
    params.epsilon = epsilon_;
    params.rms = rms_;
    params.early_lengths = early_lengths_;
    params.T = tensors.size(x_, 0);
    params.B = tensors.size(cu_seqlens_, 0) - 1;
    params.E = tensors.size(x_, 1);
    params.mode = mode_;
    params.normalize = normalize_;
    params.type = tensors.type(x_);
    return launchPool(params, stream);
  }

 private:
  const bool wide_;
  const TensorKind kind_;  // of x, gamma, beta and y
  const int x_, cu_seqlens_, gamma_, beta_, y_, y_fp32_;
  const PoolMode mode_;
  const bool normalize_;
  const float epsilon_;
  const bool rms_, early_lengths_;
};

}  // namespace

OperatorInfo poolOperator() {
  return {"PadfreePool",
          {nonNegativeRealField("epsilon"), choiceField("mode", {"first", "last", "mean", "max", "each"}),
           flagField("normalize"), flagField("has_norm"), flagField("has_beta"), flagField("rms"),
           flagField("early_lengths"), choiceField("results", {"act", "fp32"})},
          makeOperator<Pool>};
}

}  // namespace padfree
