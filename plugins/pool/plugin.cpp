// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"
#include "pool/launch.h"
#include "shell/operator.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

PoolMode modeOf(const std::string& name) {
  if (name == "first") return PoolMode::kFirst;
  if (name == "last") return PoolMode::kLast;
  if (name == "each") return PoolMode::kEach;
  return name == "mean" ? PoolMode::kMean : PoolMode::kMax;
}

constexpr int64_t kNormedMultiple = 8, kMaxPooledWidth = 1024;

class Pool final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override {
    const int64_t E = sizes.get("E");
    if (gamma_ == kAbsent || E < 0 || (E % kNormedMultiple == 0 && E <= kMaxPooledWidth)) return;
    throwInvalid("E is ", E, " with has_norm 1; allowed: multiples of ", kNormedMultiple, " up to ", kMaxPooledWidth,
                 "; set has_norm to 0 and use PadfreeLayerNorm");
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
  const int x_ = input("x"), cu_seqlens_ = input("cu_seqlens"), gamma_ = input("gamma"), beta_ = input("beta"),
            y_ = output("y"), y_fp32_ = output("y_fp32");
  const PoolMode mode_ = modeOf(attributes_.choice("mode"));
  const bool normalize_ = attributes_.flag("normalize");
  const float epsilon_ = attributes_.real("epsilon");
  const bool rms_ = attributes_.flag("rms"), early_lengths_ = attributes_.flag("early_lengths");
};

}  // namespace

OperatorInfo poolOperator() {
  return {poolSchema(), makeOperator<Pool>};
}

}  // namespace padfree
