// SPDX-License-Identifier: Apache-2.0
// libpadfree_triton_batching.so: Triton's dynamic batcher asks it before a request joins a batch ("custom batching").
#include <memory>
#include <string>

#include "triton_batching/message.h"
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

uint64_t tokensOf(TRITONBACKEND_Request* request, const std::string& name) {
  TRITONBACKEND_Input* input = nullptr;
  check(TRITONBACKEND_RequestInput(request, name.c_str(), &input));
  const int64_t* shape = nullptr;
  uint32_t dims_count = 0;
  check(TRITONBACKEND_InputProperties(input, nullptr, nullptr, &shape, &dims_count, nullptr, nullptr));
  uint64_t tokens = 1;
  for (uint32_t i = 0; i < dims_count; ++i) {
    // Servers before 25.05 accept shapes that are negative or whose product overflows: these exceed any budget.
    if (shape[i] < 0 || __builtin_mul_overflow(tokens, static_cast<uint64_t>(shape[i]), &tokens)) return UINT64_MAX;
  }
  return tokens;
}

}  // namespace
}  // namespace padfree

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model) {
  return padfree::guarded([&] {
    auto ours = std::make_unique<padfree::Batcher>(padfree::readSettings(padfree::configurationOf(model)));
    *batcher = reinterpret_cast<TRITONBACKEND_Batcher*>(ours.release());
  });
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
  return padfree::guarded(
      [&] { *include = batcher->budget.include(request, padfree::tokensOf(request, batcher->settings.input)); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void*) {
  return nullptr;
}
