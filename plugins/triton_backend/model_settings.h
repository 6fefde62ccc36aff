// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "triton_backend/metadata.h"
#include "triton_backend/text_settings.h"
#include "triton_batching/json.h"

namespace padfree {

constexpr const char* kMaxTokens = "padfree_max_tokens";
constexpr const char* kMaxSequences = "padfree_max_sequences";

// What a model's configuration says.
struct ModelSettings {
  Json config;
  std::string file;           // the plan's, in the version's folder
  int64_t max_tokens = 0;     // per run; 0: as many as the plan takes
  int64_t max_sequences = 0;  // per run
  int64_t contexts = 2;       // how many runs of an instance are under way at a time
  bool cuda_graphs = true;
  bool allow_other_gpu = false;
  std::optional<TextSettings> texts;  // of a model that takes texts too
};

// Whether a configuration is that of a model of texts alone: it names a tokenizer, and no plan.
bool isWithoutPlan(const Json& config);

// Whether texts give this input its values.
bool isFromTexts(const Input& input, const TextSettings& texts);

// Reads the configuration's parameters. Throws Failure if one is unknown, or has a value that is not allowed.
ModelSettings readModelSettings(Json config);

// Throws Failure if the configuration has tensors that the plan does not have, or tensors of other types, or if texts
// cannot give the plan's inputs their values.
void checkConfiguration(const ModelSettings& settings, const Metadata& metadata);

// Adds the inputs and outputs, the batch size and the dynamic batcher that the configuration leaves out.
void completeConfiguration(ModelSettings& settings, const Metadata& metadata);

}  // namespace padfree
