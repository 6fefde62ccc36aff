// SPDX-License-Identifier: Apache-2.0
// libtriton_padfree.so: the functions that the server calls.
#include <memory>
#include <string>

#include "common/beside.h"
#include "common/text.h"
#include "triton_backend/instance.h"
#include "triton_backend/model.h"
#include "triton_backend/text_model.h"
#include "triton_batching/failure.h"
#include "triton_batching/message.h"

namespace padfree {
namespace {

constexpr const char* kEngineLibrary = "libpadfree_engine.so";

void checkServer() {
  uint32_t major = 0, minor = 0;
  check(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major == kTritonApiMajor && minor >= kTritonApiMinor) return;
  throw Failure(
      text("the server has backend API ", major, ".", minor, ", allowed: ", kTritonApiMajor, ".", kTritonApiMinor,
           " and newer minor versions; use a server from 23.10 on, with a padfree made for its major version"),
      TRITONSERVER_ERROR_UNSUPPORTED);
}

// The engine library that the server's options name, or the one next to this library.
std::string engineLibrary(TRITONBACKEND_Backend* backend) {
  TRITONSERVER_Message* message = nullptr;
  check(TRITONBACKEND_BackendConfig(backend, &message));
  const std::string named = decode(message)["cmdline"]["engine"].text();
  if (!named.empty()) return named;
  return besideLibraryOf(&engineLibrary, kEngineLibrary);
}

using SharedBackend = std::shared_ptr<const Backend>;

// A model of either kind; the other pointer is null.
struct ServedModel {
  std::shared_ptr<Model> plan;
  std::shared_ptr<TextModel> texts;
};

// What the server keeps for us with one of its objects; null where it failed to open.
template <class State, class Handle>
State* stateOf(TRITONSERVER_Error* (*get)(Handle*, void**), Handle* handle) {
  void* state = nullptr;
  check(get(handle, &state));
  return static_cast<State*>(state);
}

SharedBackend backendOf(TRITONBACKEND_Model* model) {
  TRITONBACKEND_Backend* backend = nullptr;
  check(TRITONBACKEND_ModelBackend(model, &backend));
  return *stateOf<SharedBackend>(TRITONBACKEND_BackendState, backend);
}

std::string versionOf(TRITONBACKEND_Model* model) {
  uint64_t version = 0;
  check(TRITONBACKEND_ModelVersion(model, &version));
  return std::to_string(version);
}

std::string folderOf(TRITONBACKEND_Model* model) {
  TRITONBACKEND_ArtifactType type = 0;
  const char* location = nullptr;
  check(TRITONBACKEND_ModelRepository(model, &type, &location));
  return location;
}

void complete(TRITONBACKEND_Model* model, const std::string& folder) {
  bool is_wanted = false;
  check(TRITONBACKEND_ModelAutoCompleteConfig(model, &is_wanted));
  if (!is_wanted) return;
  ModelSettings settings = readModelSettings(configurationOf(model));
  completeConfiguration(settings, readMetadataOf(folder, settings));
  const std::string text = settings.config.toText();
  TRITONSERVER_Message* message = nullptr;
  check(TRITONSERVER_MessageNewFromSerializedJson(&message, text.data(), text.size()));
  const Message owner(message);
  check(TRITONBACKEND_ModelSetConfig(model, 1, message));
}

std::unique_ptr<ServedModel> openModel(TRITONBACKEND_Model* model) {
  const std::string version = versionOf(model), folder = folderOf(model) + "/" + version;
  const Json config = configurationOf(model);
  if (isWithoutPlan(config)) {
    return std::make_unique<ServedModel>(
        ServedModel{nullptr, std::make_shared<TextModel>(backendOf(model), folder, version, config)});
  }
  complete(model, folder);
  auto settings = readModelSettings(configurationOf(model));
  return std::make_unique<ServedModel>(
      ServedModel{std::make_shared<Model>(backendOf(model), folder, version, std::move(settings)), nullptr});
}

// The instance's GPU, or -1 for a CPU.
int32_t deviceOf(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_InstanceGroupKind kind = 0;
  int32_t device = 0;
  check(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  if (kind != TRITONSERVER_INSTANCEGROUPKIND_GPU) return -1;
  check(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  return device;
}

std::unique_ptr<ServedInstance> openInstance(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model = nullptr;
  check(TRITONBACKEND_ModelInstanceModel(instance, &model));
  const auto& served = *stateOf<ServedModel>(TRITONBACKEND_ModelState, model);
  if (served.texts != nullptr) return std::make_unique<TextInstance>(served.texts, instance);
  return std::make_unique<Instance>(served.plan, instance, deviceOf(instance));
}

}  // namespace
}  // namespace padfree

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return padfree::guarded([&] {
    padfree::checkServer();
    auto state =
        std::make_unique<padfree::SharedBackend>(std::make_shared<padfree::Backend>(padfree::engineLibrary(backend)));
    padfree::check(TRITONBACKEND_BackendSetState(backend, state.get()));
    static_cast<void>(state.release());  // it belongs to the server until TRITONBACKEND_Finalize
  });
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  return padfree::guarded(
      [&] { delete padfree::stateOf<padfree::SharedBackend>(TRITONBACKEND_BackendState, backend); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return padfree::guarded([&] {
    auto state = padfree::openModel(model);
    padfree::check(TRITONBACKEND_ModelSetState(model, state.get()));
    static_cast<void>(state.release());
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return padfree::guarded([&] { delete padfree::stateOf<padfree::ServedModel>(TRITONBACKEND_ModelState, model); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return padfree::guarded([&] {
    auto ours = padfree::openInstance(instance);
    padfree::check(TRITONBACKEND_ModelInstanceSetState(instance, ours.get()));
    static_cast<void>(ours.release());
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return padfree::guarded(
      [&] { delete padfree::stateOf<padfree::ServedInstance>(TRITONBACKEND_ModelInstanceState, instance); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, uint32_t count) {
  void* state = nullptr;
  if (TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceState(instance, &state)) return error;
  // Returning an error would hand back requests that are answered; those that were not are answered by unwinding.
  TRITONSERVER_Error* error =
      padfree::guarded([&] { static_cast<padfree::ServedInstance*>(state)->execute(requests, count); });
  if (error != nullptr) {
    padfree::succeeded(
        TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error)));
    TRITONSERVER_ErrorDelete(error);
  }
  return nullptr;
}
