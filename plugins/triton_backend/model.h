// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "triton_backend/engine_library.h"
#include "triton_backend/metadata.h"
#include "triton_backend/model_settings.h"
#include "triton_backend/run.h"

namespace padfree {

// The metadata beside the plan that the settings name. folder: the version's.
Metadata readMetadataOf(const std::string& folder, const ModelSettings& settings);

// A model's files and configuration, and its engine on every device that an instance runs on.
class Model {
 public:
  // folder: the version's. Throws Failure where files and configuration do not go together.
  Model(std::shared_ptr<const EngineLibrary> library, const std::string& folder, ModelSettings settings);

  const Metadata& metadata() const { return metadata_; }
  const ModelSettings& settings() const { return settings_; }
  const Budget& budget() const { return budget_; }

  // The engine on a device (-1: a CPU), loaded if no instance there has it.
  std::shared_ptr<Engine> engineOn(int32_t device);

 private:
  const std::shared_ptr<const EngineLibrary> library_;
  const ModelSettings settings_;
  const std::string plan_;
  const Metadata metadata_;
  const Budget budget_;
  std::mutex mutex_;
  std::map<int32_t, std::weak_ptr<Engine>> engines_;
};

}  // namespace padfree
