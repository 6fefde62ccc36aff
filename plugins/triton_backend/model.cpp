// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/model.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "triton_backend/failure.h"

namespace padfree {
namespace {

std::string readFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    throw Failure(path +
                      " cannot be read; copy the plan and the .json file that padfree build wrote beside it into "
                      "the version's folder",
                  TRITONSERVER_ERROR_UNAVAILABLE);
  }
  return text.str();
}

// A file that was cut off on its way here. (To compute a digest of it, as padfree's Session does, takes seconds.)
void checkSize(const std::string& plan, const Metadata& metadata) {
  std::ifstream file(plan, std::ios::binary | std::ios::ate);
  const auto bytes = file ? static_cast<int64_t>(file.tellg()) : -1;
  if (bytes == metadata.plan_bytes) return;
  throw Failure(plan + (bytes < 0 ? ": it cannot be read" : ": " + std::to_string(bytes) + " bytes") +
                ", its metadata say " + std::to_string(metadata.plan_bytes) +
                " bytes: the plan is cut off or another one; copy both files again, or build the plan again");
}

int64_t narrowed(const char* parameter, int64_t wanted, int64_t allowed) {
  if (wanted > allowed) {
    throw Failure("'" + std::string(parameter) + "' is " + std::to_string(wanted) + ", allowed: at most " +
                  std::to_string(allowed) +
                  ", which one run of this model takes; correct config.pbtxt, or build the "
                  "engine for more");
  }
  return wanted == 0 ? allowed : wanted;
}

}  // namespace

Metadata readMetadataOf(const std::string& folder, const ModelSettings& settings) {
  const std::string name = settings.file + ".json";
  return readMetadata(readFile(folder + "/" + name), name);
}

Model::Model(std::shared_ptr<const Backend> backend, const std::string& folder, std::string version,
             ModelSettings settings)
    : backend_(std::move(backend)),
      version_(std::move(version)),
      settings_(std::move(settings)),
      plan_(folder + "/" + settings_.file),
      metadata_(readMetadataOf(folder, settings_)),
      budget_{narrowed(kMaxTokens, settings_.max_tokens, metadata_.max_tokens),
              narrowed(kMaxSequences, settings_.max_sequences, metadata_.max_sequences)} {
  checkConfiguration(settings_.config, metadata_);
  checkSize(plan_, metadata_);
}

std::shared_ptr<Engine> Model::engineOn(int32_t device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Engine> engine = engines_[device].lock();
  if (engine == nullptr) {
    const EngineOptions options{plan_, device, settings_.allow_other_gpu, settings_.cuda_graphs};
    engine = std::make_shared<Engine>(backend_->library, metadata_, options);
    engines_[device] = engine;
  }
  return engine;
}

}  // namespace padfree
