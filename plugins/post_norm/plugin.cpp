// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"
#include "linear/launch.h"
#include "post_norm/launch.h"
#include "shell/operator.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

class PostNorm final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override {
    constexpr int64_t kMaxWidth = kMaxMomentGroups * kMomentFeatures;
    const int64_t N = sizes.get("N");
    if (N < 0 || (N % kMomentFeatures == 0 && N <= kMaxWidth)) return;
    throwInvalid("N is ", N, "; allowed: multiples of ", kMomentFeatures, " up to ", kMaxWidth,
                 "; rewrite the model again, or with --norms separate");
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    PostNormParams params{};
    params.x = tensors.input(x_);
    params.residual = tensors.input(residual_);
    params.gamma = tensors.input(gamma_);
    params.y = tensors.output(y_);
    params.moments = tensors.output<float>(moments_);
    params.T = tensors.size(x_, 0);
    params.N = tensors.size(x_, 1);
    params.epsilon = epsilon_;
    params.type = tensors.type(x_);
    return launchPostNorm(params, stream);
  }

 private:
  const int x_ = input("x"), residual_ = input("residual"), gamma_ = input("gamma"), y_ = output("y"),
            moments_ = output("moments");
  const float epsilon_ = attributes_.real("epsilon");
};

}  // namespace

OperatorInfo postNormOperator() {
  return {postNormSchema(), makeOperator<PostNorm>};
}

}  // namespace padfree
