// SPDX-License-Identifier: Apache-2.0
// The tokens' schedule, for the shells of operators that give it, alone or beside their rows.
#pragma once

#include <cstdint>
#include <limits>

#include "attention/task.h"
#include "common/text.h"
#include "schedule/launch.h"
#include "shell/operator.h"

namespace padfree {

// The tensors of a node's schedule, each kAbsent where the node does not have it, and the attributes of its task list.
class ScheduleOutputs {
 public:
  // The attributes num_heads and causal_tasks. The indices are those of one input, seq_lens, and of outputs.
  ScheduleOutputs(const Attributes& attributes, int seq_lens, int cu_seqlens, int positions, int tasks)
      : seq_lens_(seq_lens),
        cu_seqlens_(cu_seqlens),
        positions_(positions),
        tasks_(tasks),
        num_heads_(attributes.integer("num_heads")),
        causal_(attributes.flag("causal_tasks")) {}

  // Throws std::invalid_argument where the task list may have more entries than an int32 counts.
  void checkSizes(const Sizes& sizes) const {
    const int64_t T = sizes.get("T"), B = sizes.get("B");
    if (tasks_ == kAbsent || T < 0 || B < 0) return;
    const int64_t entries = taskListEntries(T, B, num_heads_);
    if (entries > std::numeric_limits<int32_t>::max()) {
      throwInvalid("the task list may have ", entries, " entries at T = ", T, ", B = ", B,
                   " and num_heads = ", num_heads_, "; allowed: what an int32 can count; use smaller batches");
    }
  }

  // Sets the length of the output tasks [L,4].
  void deriveSizes(SizeExpressions& sizes) const {
    if (tasks_ != kAbsent) sizes.set("L", taskListEntries(sizes.at("T"), sizes.at("B"), num_heads_).get());
  }

  // The schedule of T tokens, without token_index and prefix; nothing where the node has no output cu_seqlens.
  ScheduleParams paramsOf(const Tensors& tensors, int T) const {
    ScheduleParams params{};
    if (cu_seqlens_ == kAbsent) return params;
    params.seq_lens = tensors.input<int>(seq_lens_);
    params.cu_seqlens = tensors.output<int>(cu_seqlens_);
    params.positions = tensors.output<int>(positions_);
    params.tasks = tensors.output<AttentionTask>(tasks_);
    params.B = tensors.size(seq_lens_, 0);
    params.T = T;
    params.H = num_heads_;
    params.num_tasks = taskListRoom(params.T, params.B, params.H);
    params.causal = causal_;
    return params;
  }

 private:
  int seq_lens_, cu_seqlens_, positions_, tasks_;
  int num_heads_;
  bool causal_;
};

}  // namespace padfree
