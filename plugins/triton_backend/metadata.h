// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine_abi.h"
#include "triton_backend/triton_abi.h"

namespace padfree {

// An input of the plan, as the metadata next to it describe it.
struct Input : PadfreeTensor {  // of int32, or of float32 for embeddings and numbers per sequence
  enum class Role { kTokens, kPerSequence, kSeqLens, kMaxSeqLen, kPrefix, kUnread };

  Role role;
  int64_t limit;                  // values are 0..limit-1; 0: no limit is known
  std::vector<int32_t> excluded;  // values that stand for padding
  bool zero_when_missing;         // token types, and lengths of prompts

  bool comesWithRequests() const { return role == Role::kTokens || role == Role::kPerSequence; }
};

using Output = PadfreeTensor;  // with rows of tokens or sequences

// What model.plan.json says, as far as a server needs it.
struct Metadata {
  std::vector<Input> inputs;  // in the order of the file
  std::vector<Output> outputs;
  size_t ids;             // the input whose shape says how many tokens there are
  int64_t max_positions;  // 0: none
  int64_t longest;        // most tokens of one sequence
  int64_t min_tokens, max_tokens, max_sequences, max_slots;
  int64_t plan_bytes;
  std::string plan_sha256;
  std::string tensorrt, gpu_name, compute_capability;
  bool has_plugins;
};

// Reads and checks the metadata. Throws Failure if they are damaged, or those of a plan that this backend cannot serve.
Metadata readMetadata(const std::string& text, const std::string& source);

// What a type is called in metadata and in configurations, its number in the server's interface, and its bytes.
struct TypeInfo {
  const char* name;
  PadfreeType type;
  const char* config;
  TRITONSERVER_DataType triton;
  int64_t bytes;
};
const TypeInfo& infoOf(PadfreeType type);

}  // namespace padfree
