// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "embedding/launch.h"
#include "schedule/task_list.h"
#include "shell/operator.h"
#include "shell/result_types.h"

namespace padfree {
namespace {

class Embedding final : public Operator {
 public:
  explicit Embedding(const Attributes& attributes)
      : results_(attributes),
        kind_(results_.e4m3 ? TensorKind::kHalf : TensorKind::kActivation),
        ids_(addInput("ids", TensorKind::kInt32, "[T]")),
        token_types_(addInput("token_types", TensorKind::kInt32, "[T]", attributes.flag("has_token_types"))),
        positions_(addInput("positions", TensorKind::kInt32, "[T]", attributes.flag("has_positions"))),
        cu_seqlens_(addInput("cu_seqlens", TensorKind::kInt32, "[B+1]", !attributes.flag("schedules"))),
        word_table_(addInput("word_table", kind_, "[V,E]")),
        position_table_(addInput("position_table", kind_, "[P,E]", attributes.flag("has_position_table"))),
        type_table_(addInput("type_table", kind_, "[N,E]", attributes.flag("has_token_types"))),
        gamma_(addInput("gamma", kind_, "[E]")),
        beta_(addInput("beta", kind_, "[E]", attributes.flag("has_beta"))),
        seq_lens_(addInput("seq_lens", TensorKind::kInt32, "[B]", attributes.flag("schedules"))),
        y_(addOutput("y", kind_, "[T,E]", results_.activations)),
        y_e4m3_(addOutput("y_e4m3", TensorKind::kE4m3, "[T,E]", results_.e4m3)),
        made_offsets_(addOutput("cu_seqlens", TensorKind::kInt32, "[B+1]", attributes.flag("schedules"))),
        tasks_(addOutput("tasks", TensorKind::kInt32, "[L,4]", attributes.flag("has_tasks"))),
        num_heads_(attributes.integer("num_heads")),
        position_offset_(attributes.integer("position_offset")),
        early_ids_(attributes.flag("early_ids")),
        epsilon_(attributes.real("epsilon")) {
    if (positions_ != kAbsent && position_table_ == kAbsent) {
      throw std::invalid_argument(
          "has_positions is 1 with has_position_table 0; allowed: positions only with their table; set has_positions "
          "to 0 or add the table");
    }
    if (tasks_ != kAbsent && made_offsets_ == kAbsent) {
      throw std::invalid_argument(
          "has_tasks is 1 with schedules 0; allowed: tasks beside the offsets that they are made with; set schedules "
          "to 1, or has_tasks to 0 and use PadfreeSchedule");
    }
  }

  void checkSizes(const Sizes& sizes) const override {
    if (tasks_ != kAbsent) checkTaskList(sizes, num_heads_);
  }

  void deriveSizes(SizeExpressions& sizes) const override {
    if (tasks_ != kAbsent) deriveTaskList(sizes, num_heads_);
  }

  std::vector<int32_t> measure(const ProfiledTensors&) const override {
    if (results_.e4m3) checkCapability(kLeastE4m3Version, kE4m3RowsNextStep);
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
    if (made_offsets_ != kAbsent) {
      ScheduleParams& schedule = params.schedule;
      schedule.seq_lens = tensors.input<int>(seq_lens_);
      schedule.cu_seqlens = tensors.output<int>(made_offsets_);
      schedule.tasks = tensors.output<AttentionTask>(tasks_);
      schedule.B = params.B;
      schedule.T = params.T;
      schedule.H = num_heads_;
      schedule.num_tasks = taskListRoom(params.T, params.B, num_heads_);
    }
    return launchEmbedding(params, stream);
  }

 private:
  const Results results_;
  const TensorKind kind_;  // of tables, gamma, beta and y
  const int ids_, token_types_, positions_, cu_seqlens_, word_table_, position_table_, type_table_, gamma_, beta_,
      seq_lens_, y_, y_e4m3_, made_offsets_, tasks_;
  const int num_heads_;
  const int position_offset_;
  const bool early_ids_;
  const float epsilon_;
};

}  // namespace

OperatorInfo embeddingOperator() {
  return {"PadfreeEmbedding",
          withResultsFields({nonNegativeRealField("epsilon"),
                             integerField("position_offset", 0, std::numeric_limits<int32_t>::max()),
                             flagField("has_token_types"), flagField("has_positions"), flagField("has_position_table"),
                             flagField("has_beta"), flagField("schedules"), flagField("has_tasks"),
                             integerField("num_heads", 1, kMaxTaskHeads), flagField("early_ids")}),
          makeOperator<Embedding>};
}

}  // namespace padfree
