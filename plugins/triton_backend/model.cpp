// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/model.h"

#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "common/text.h"
#include "triton_backend/sha256.h"
#include "triton_batching/failure.h"

namespace padfree {
namespace {

// Checks that the plan is complete and the one that its metadata describe, as padfree's Session does and in its words.
void checkPlan(const std::string& plan, const Metadata& metadata) {
  std::ifstream file(plan, std::ios::binary | std::ios::ate);
  if (!file) throw Failure(plan + ": cannot be read; copy the plan that padfree build wrote into the version's folder");
  const auto bytes = static_cast<int64_t>(file.tellg());
  if (bytes != metadata.plan_bytes) {
    throwFailure(
        plan, ": ", bytes, " bytes, its metadata says ", metadata.plan_bytes,
        ": the plan is truncated or not the one that was built; copy both files again or build the plan again");
  }
  file.seekg(0);
  Sha256 sha256;
  std::vector<char> chunk(size_t{1} << 22);
  while (file) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    sha256.add(chunk.data(), static_cast<size_t>(file.gcount()));
  }
  const std::string digest = sha256.digest();
  if (digest == metadata.plan_sha256) return;
  throw Failure(plan + ": SHA-256 " + digest.substr(0, 16) + "..., its metadata says " +
                metadata.plan_sha256.substr(0, 16) +
                "...: the plan was changed or damaged; copy both files again or build the plan again");
}

int64_t narrowed(const char* parameter, int64_t wanted, int64_t allowed) {
  if (wanted > allowed) {
    throwFailure("'", parameter, "' is ", wanted, ", allowed: at most ", allowed,
                 ", which one run of this model takes; correct config.pbtxt, or build the "
                 "engine for more");
  }
  return wanted == 0 ? allowed : wanted;
}

}  // namespace

std::string readFile(const std::string& path, const std::string& remedy) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw Failure(path + " cannot be read; " + remedy, TRITONSERVER_ERROR_UNAVAILABLE);
  return text.str();
}

Metadata readMetadataOf(const std::string& folder, const ModelSettings& settings) {
  const std::string name = settings.file + ".json";
  return readMetadata(readFile(folder + "/" + name,
                               "copy the plan and the .json file that padfree build wrote beside it into the version's "
                               "folder"),
                      name);
}

Model::Model(std::shared_ptr<const Backend> backend, const std::string& folder, std::string version,
             ModelSettings settings)
    : backend_(std::move(backend)),
      version_(std::move(version)),
      settings_(std::move(settings)),
      plan_(folder + "/" + settings_.file),
      metadata_(readMetadataOf(folder, settings_)),
      budget_{narrowed(kMaxTokens, settings_.max_tokens, metadata_.max_tokens),
              narrowed(kMaxSequences, settings_.max_sequences, metadata_.max_sequences)},
      texts_(settings_.texts ? std::make_unique<TextTokenizer>(folder, *settings_.texts) : nullptr) {
  checkConfiguration(settings_, metadata_);
  checkPlan(plan_, metadata_);
}

std::shared_ptr<Engine> Model::engineOn(int32_t device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Engine> engine = engines_[device].lock();
  if (engine == nullptr) {
    PadfreePlan plan;
    plan.path = plan_;
    plan.tensorrt = metadata_.tensorrt;
    plan.compute_capability = metadata_.compute_capability;
    plan.gpu_name = metadata_.gpu_name;
    plan.has_plugins = metadata_.has_plugins;
    plan.allow_other_gpu = settings_.allow_other_gpu;
    plan.cuda_graphs = settings_.cuda_graphs;
    plan.device = device;
    plan.most = {metadata_.max_tokens, metadata_.max_sequences, metadata_.max_slots};
    plan.inputs.assign(metadata_.inputs.begin(), metadata_.inputs.end());
    plan.outputs = metadata_.outputs;
    engine = backend_->engines.open(plan);
    engines_[device] = engine;
  }
  return engine;
}

}  // namespace padfree
