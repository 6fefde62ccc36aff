// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "triton_backend/metadata.h"
#include "triton_batching/json.h"

namespace padfree {

constexpr const char* kMaxTokens = "padfree_max_tokens";
constexpr const char* kMaxSequences = "padfree_max_sequences";
constexpr const char* kSeqLens = "seq_lens";  // the input of requests that tells how long sequences are

// What a model's configuration says.
struct ModelSettings {
  Json config;
  std::string file;           // the plan's, in the version's folder
  int64_t max_tokens = 0;     // per run; 0: as many as the plan takes
  int64_t max_sequences = 0;  // per run
  int64_t contexts = 2;       // how many runs of an instance are under way at a time
  bool cuda_graphs = true;
  bool allow_other_gpu = false;
};

// Reads the configuration's parameters. Throws Failure if one is unknown, or has a value that is not allowed.
ModelSettings readModelSettings(Json config);

// Throws Failure if the configuration has tensors that the plan does not have, or tensors of other types.
void checkConfiguration(const Json& config, const Metadata& metadata);

// Adds the inputs and outputs, the batch size and the dynamic batcher that a configuration leaves out.
void completeConfiguration(Json& config, const Metadata& metadata);

}  // namespace padfree
