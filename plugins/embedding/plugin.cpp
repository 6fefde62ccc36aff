// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "embedding/launch.h"
#include "shell/operator.h"

namespace padfree {
namespace {

class Embedding final : public Operator {
 public:
  explicit Embedding(const Attributes& attributes)
      : ids_(addInput("ids", TensorKind::kInt32, "[T]")),
        token_types_(addInput("token_types", TensorKind::kInt32, "[T]", attributes.flag("has_token_types"))),
        positions_(addInput("positions", TensorKind::kInt32, "[T]", attributes.flag("has_positions"))),
        cu_seqlens_(addInput("cu_seqlens", TensorKind::kInt32, "[B+1]")),
        word_table_(addInput("word_table", TensorKind::kActivation, "[V,E]")),
        position_table_(
            addInput("position_table", TensorKind::kActivation, "[P,E]", attributes.flag("has_position_table"))),
        type_table_(addInput("type_table", TensorKind::kActivation, "[N,E]", attributes.flag("has_token_types"))),
        gamma_(addInput("gamma", TensorKind::kActivation, "[E]")),
        beta_(addInput("beta", TensorKind::kActivation, "[E]", attributes.flag("has_beta"))),
        y_(addOutput("y", TensorKind::kActivation, "[T,E]")),
        position_offset_(attributes.integer("position_offset")),
        epsilon_(attributes.real("epsilon")) {
    if (positions_ != kAbsent && position_table_ == kAbsent) {
      throw std::invalid_argument(
          "has_positions is 1 with has_position_table 0; allowed: positions only with their table; set has_positions "
          "to 0 or add the table");
    }
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    EmbeddingParams params{};
    params.ids = tensors.input<int>(ids_);
    params.token_types = tensors.input<int>(token_types_);
    params.positions = tensors.input<int>(positions_);
    params.cu_seqlens = tensors.input<int>(cu_seqlens_);
    params.word_table = tensors.input(word_table_);
    params.position_table = tensors.input(position_table_);
    params.type_table = tensors.input(type_table_);
    params.gamma = tensors.input(gamma_);
    params.beta = tensors.input(beta_);
    params.y = tensors.output(y_);
    params.T = tensors.size(ids_, 0);
    params.B = tensors.size(cu_seqlens_, 0) - 1;
    params.E = tensors.size(gamma_, 0);
    params.V = tensors.size(word_table_, 0);
    params.P = tensors.size(position_table_, 0);
    params.N = tensors.size(type_table_, 0);
    params.position_offset = position_offset_;
    params.epsilon = epsilon_;
    params.type = tensors.type(word_table_);
    return launchEmbedding(params, stream);
  }

 private:
  const int ids_, token_types_, positions_, cu_seqlens_, word_table_, position_table_, type_table_, gamma_, beta_, y_;
  const int position_offset_;
  const float epsilon_;
};

}  // namespace

OperatorInfo embeddingOperator() {
  return {"PadfreeEmbedding",
          {nonNegativeRealField("epsilon"), integerField("position_offset", 0, std::numeric_limits<int32_t>::max()),
           flagField("has_token_types"), flagField("has_positions"), flagField("has_position_table"),
           flagField("has_beta")},
          makeOperator<Embedding>};
}

}  // namespace padfree
