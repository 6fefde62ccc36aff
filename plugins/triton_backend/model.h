// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "triton_backend/engine_library.h"
#include "triton_backend/metadata.h"
#include "triton_backend/metrics.h"
#include "triton_backend/model_settings.h"
#include "triton_backend/run.h"
#include "triton_backend/text_tokenizer.h"

namespace padfree {

// What all models of a server share.
struct Backend {
  explicit Backend(const std::string& engine_library) : engines(loadEngineLibrary(engine_library)) {}

  const PadfreeEngineApi& engines;
  const MetricFamilies families;
};

// The content of a file. Throws Failure, with `remedy` as advice, if it cannot be read.
std::string readFile(const std::string& path, const std::string& remedy);

// The metadata next to the plan that the settings name. folder: that of the version.
Metadata readMetadataOf(const std::string& folder, const ModelSettings& settings);

// A model's files and configuration, and its engine on every device that an instance runs on.
class Model {
 public:
  // folder: that of the version. Throws Failure if files and configuration do not fit together.
  Model(std::shared_ptr<const Backend> backend, const std::string& folder, std::string version, ModelSettings settings);

  const Backend& backend() const { return *backend_; }
  const std::string& name() const { return settings_.config["name"].text(); }
  const std::string& version() const { return version_; }
  const Metadata& metadata() const { return metadata_; }
  const ModelSettings& settings() const { return settings_; }
  const Budget& budget() const { return budget_; }
  const TextTokenizer* texts() const { return texts_.get(); }  // null: the model takes token ids alone

  // The engine on a device (-1: a CPU); it is loaded unless an instance there has it already.
  std::shared_ptr<Engine> engineOn(int32_t device);

  // How many lanes of all instances are free.
  std::atomic<int> free_lanes{0};

 private:
  const std::shared_ptr<const Backend> backend_;
  const std::string version_;
  const ModelSettings settings_;
  const std::string plan_;
  const Metadata metadata_;
  const Budget budget_;
  const std::unique_ptr<const TextTokenizer> texts_;
  std::mutex mutex_;
  std::map<int32_t, std::weak_ptr<Engine>> engines_;
};

}  // namespace padfree
