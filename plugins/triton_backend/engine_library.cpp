// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/engine_library.h"

#include <dlfcn.h>

#include "triton_backend/failure.h"

namespace padfree {
namespace {

void require(bool success, const PadfreeError& error) {
  if (!success) throw Failure(error.text, TRITONSERVER_ERROR_INTERNAL);
}

std::vector<PadfreeTensor> describeInputs(const Metadata& metadata) {
  std::vector<PadfreeTensor> tensors;
  for (const Input& input : metadata.inputs) {
    PadfreeRows rows = kPadfreeSequences;
    if (input.role == Input::Role::kTokens || input.role == Input::Role::kUnread) rows = kPadfreeTokens;
    if (input.role == Input::Role::kMaxSeqLen) rows = kPadfreeSlots;
    if (input.role == Input::Role::kPrefix) rows = kPadfreeOnce;
    tensors.push_back(
        {input.name.c_str(), rows, input.type, static_cast<int32_t>(input.trailing.size()), input.trailing.data()});
  }
  return tensors;
}

std::vector<PadfreeTensor> describeOutputs(const Metadata& metadata) {
  std::vector<PadfreeTensor> tensors;
  for (const Output& output : metadata.outputs) {
    tensors.push_back({output.name.c_str(), output.rows, output.type, static_cast<int32_t>(output.trailing.size()),
                       output.trailing.data()});
  }
  return tensors;
}

}  // namespace

EngineLibrary::EngineLibrary(const std::string& path) {
  // Never closed: TensorRT and CUDA keep threads and pointers that outlive all engines.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    throw Failure("the engine library cannot be loaded (" + std::string(dlerror()) +
                      "); keep libpadfree_engine.so beside libtriton_padfree.so, or name it: "
                      "--backend-config=padfree,engine=PATH",
                  TRITONSERVER_ERROR_UNAVAILABLE);
  }
  auto* function = reinterpret_cast<PadfreeEngineApiFunction*>(dlsym(handle, kPadfreeEngineApiName));
  api_ = function == nullptr ? nullptr : function();
  if (api_ == nullptr || api_->abi != kPadfreeEngineAbi) {
    const std::string found = api_ == nullptr ? "none" : std::to_string(api_->abi);
    throw Failure(path + " has engine interface " + found + ", this backend needs " +
                      std::to_string(kPadfreeEngineAbi) + "; take both libraries from the same padfree",
                  TRITONSERVER_ERROR_UNSUPPORTED);
  }
}

Engine::Engine(const EngineLibrary& library, const Metadata& metadata, const EngineOptions& options)
    : api_(library.api()) {
  const auto inputs = describeInputs(metadata);
  const auto outputs = describeOutputs(metadata);
  PadfreePlan plan{};
  plan.path = options.plan.c_str();
  plan.tensorrt = metadata.tensorrt.c_str();
  plan.compute_capability = metadata.compute_capability.c_str();
  plan.gpu_name = metadata.gpu_name.c_str();
  plan.has_plugins = metadata.has_plugins;
  plan.allow_other_gpu = options.allow_other_gpu;
  plan.cuda_graphs = options.cuda_graphs;
  plan.device = options.device;
  plan.max_tokens = metadata.max_tokens;
  plan.max_sequences = metadata.max_sequences;
  plan.max_slots = metadata.max_slots;
  plan.input_count = static_cast<int32_t>(inputs.size());
  plan.output_count = static_cast<int32_t>(outputs.size());
  plan.inputs = inputs.data();
  plan.outputs = outputs.data();
  PadfreeError error{};
  handle_ = api_.open(&plan, &error);
  require(handle_ != nullptr, error);
}

void Engine::read(void* destination, const void* source, int64_t bytes) const {
  PadfreeError error{};
  require(api_.read(handle_, destination, source, bytes, &error), error);
}

Lane::Lane(std::shared_ptr<Engine> engine) : engine_(std::move(engine)), api_(engine_->api_) {
  PadfreeError error{};
  handle_ = api_.open_lane(engine_->handle_, &error);
  require(handle_ != nullptr, error);
}

void Lane::arrange(const PadfreeSizes& sizes, std::vector<void*>& inputs) {
  PadfreeError error{};
  require(api_.arrange(handle_, &sizes, inputs.data(), &error), error);
}

void Lane::copyIn(size_t input, int64_t offset, const void* source, int64_t bytes) {
  PadfreeError error{};
  require(api_.copy_in(handle_, static_cast<int32_t>(input), offset, source, bytes, &error), error);
}

void Lane::start(const bool* to_host) {
  PadfreeError error{};
  require(api_.start(handle_, to_host, &error), error);
}

void Lane::wait() {
  PadfreeError error{};
  require(api_.wait(handle_, &error), error);
}

const char* Lane::output(size_t output) const {
  return static_cast<const char*>(api_.output(handle_, static_cast<int32_t>(output)));
}

void Lane::copyOut(size_t output, int64_t offset, void* destination, int64_t bytes) {
  PadfreeError error{};
  require(api_.copy_out(handle_, static_cast<int32_t>(output), offset, destination, bytes, &error), error);
}

void Lane::zeroOut(void* destination, int64_t bytes) {
  PadfreeError error{};
  require(api_.zero_out(handle_, destination, bytes, &error), error);
}

void Lane::settle() {
  api_.settle(handle_);
}

void Lane::finishCopies() {
  PadfreeError error{};
  require(api_.finish_copies(handle_, &error), error);
}

}  // namespace padfree
