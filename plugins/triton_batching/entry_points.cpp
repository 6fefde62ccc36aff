// SPDX-License-Identifier: Apache-2.0
// libpadfree_triton_batching.so: Triton's dynamic batcher asks it before a request joins a batch ("custom batching").
#include <exception>
#include <memory>
#include <string>

#include "triton_batching/json.h"
#include "triton_batching/settings.h"
#include "triton_batching/token_budget.h"
#include "triton_batching/triton_abi.h"

namespace padfree {
namespace {

// What the server holds as a batcher (one per model) and as each of its batches.
struct Batcher {
  explicit Batcher(Settings&& model_settings)
      : settings(std::move(model_settings)), budget(settings.max_tokens, settings.delays) {}

  const Settings settings;
  TokenBudget budget;
};

struct MessageDeleter {
  void operator()(TRITONSERVER_Message* message) const {
    TRITONSERVER_Error* error = TRITONSERVER_MessageDelete(message);
    if (error != nullptr) TRITONSERVER_ErrorDelete(error);
  }
};

TRITONSERVER_Error* readConfiguration(TRITONBACKEND_Model* model, Json& config) {
  TRITONSERVER_Message* message = nullptr;
  if (TRITONSERVER_Error* error = TRITONBACKEND_ModelConfig(model, 1, &message)) return error;
  const std::unique_ptr<TRITONSERVER_Message, MessageDeleter> owner(message);
  const char* text = nullptr;
  size_t size = 0;
  if (TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(message, &text, &size)) return error;
  config = Json::parse({text, size});
  return nullptr;
}

TRITONSERVER_Error* countTokens(TRITONBACKEND_Request* request, const std::string& name, uint64_t& tokens) {
  TRITONBACKEND_Input* input = nullptr;
  if (TRITONSERVER_Error* error = TRITONBACKEND_RequestInput(request, name.c_str(), &input)) return error;
  const int64_t* shape = nullptr;
  uint32_t dims_count = 0;
  TRITONSERVER_Error* error =
      TRITONBACKEND_InputProperties(input, nullptr, nullptr, &shape, &dims_count, nullptr, nullptr);
  if (error != nullptr) return error;
  tokens = 1;
  for (uint32_t i = 0; i < dims_count; ++i) {
    // Servers before 25.05 accept shapes that are negative or whose product overflows: these exceed any budget.
    if (shape[i] < 0 || __builtin_mul_overflow(tokens, static_cast<uint64_t>(shape[i]), &tokens)) {
      tokens = UINT64_MAX;
      return nullptr;
    }
  }
  return nullptr;
}

}  // namespace
}  // namespace padfree

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model) {
  try {
    padfree::Json config;
    if (TRITONSERVER_Error* error = padfree::readConfiguration(model, config)) return error;
    *batcher = reinterpret_cast<TRITONBACKEND_Batcher*>(new padfree::Batcher(padfree::readSettings(config)));
    return nullptr;
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, error.what());
  }
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) {
  delete reinterpret_cast<padfree::Batcher*>(batcher);  // null if the model failed to load
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** batch) {
  auto* ours = reinterpret_cast<padfree::Batcher*>(const_cast<TRITONBACKEND_Batcher*>(batcher));
  if (ours != nullptr) ours->budget.beginRound(batch);  // the scheduler's thread outlives the model's batcher
  *batch = ours;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* batch, bool* include) {
  // A request that cannot be judged is let through for the model to answer: refused, it would stay in the queue
  // forever.
  *include = true;
  auto* batcher = static_cast<padfree::Batcher*>(batch);
  uint64_t tokens = 0;
  if (TRITONSERVER_Error* error = padfree::countTokens(request, batcher->settings.input, tokens)) return error;
  try {
    *include = batcher->budget.include(request, tokens);
    return nullptr;
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void*) {
  return nullptr;
}
