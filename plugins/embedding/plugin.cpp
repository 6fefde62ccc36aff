// SPDX-License-Identifier: Apache-2.0
#include "embedding/launch.h"
#include "schedule/outputs.h"
#include "shell/operator.h"
#include "shell/result_types.h"
#include "shell/schemas.h"

namespace padfree {
namespace {

class Embedding final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override { schedule_.checkSizes(sizes); }
  void deriveSizes(SizeExpressions& sizes) const override { schedule_.deriveSizes(sizes); }

  std::vector<int32_t> measure(const ProfiledTensors&) const override {
    if (results_.e4m3) checkCapability(kMinE4m3Version, kE4m3RowsNextStep);
    return {};
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
    params.y_e4m3 = tensors.output(y_e4m3_);
    params.e4m3_factor = 1.f / results_.y_scale;
    params.T = tensors.size(ids_, 0);
    params.B = seq_lens_ == kAbsent ? tensors.size(cu_seqlens_, 0) - 1 : tensors.size(seq_lens_, 0);
    params.E = tensors.size(gamma_, 0);
    params.V = tensors.size(word_table_, 0);
    params.P = tensors.size(position_table_, 0);
    params.N = tensors.size(type_table_, 0);
    params.position_offset = position_offset_;
    params.epsilon = epsilon_;
    params.type = tensors.type(word_table_);
    params.early_ids = early_ids_;
    params.schedule = schedule_.paramsOf(tensors, params.T);
    return launchEmbedding(params, stream);
  }

 private:
  const Results results_{attributes_};
  const int ids_ = input("ids"), token_types_ = input("token_types"), positions_ = input("positions"),
            cu_seqlens_ = input("cu_seqlens"), word_table_ = input("word_table"),
            position_table_ = input("position_table"), type_table_ = input("type_table"), gamma_ = input("gamma"),
            beta_ = input("beta"), seq_lens_ = input("seq_lens"), y_ = output("y"), y_e4m3_ = output("y_e4m3");
  const ScheduleOutputs schedule_{attributes_, seq_lens_, output("cu_seqlens"), kAbsent, output("tasks")};
  const int position_offset_ = attributes_.integer("position_offset");
  const bool early_ids_ = attributes_.flag("early_ids");
  const float epsilon_ = attributes_.real("epsilon");
};

}  // namespace

OperatorInfo embeddingOperator() {
  return {embeddingSchema(), makeOperator<Embedding>};
}

}  // namespace padfree
