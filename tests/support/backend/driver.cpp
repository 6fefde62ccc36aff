// SPDX-License-Identifier: Apache-2.0
// Drives the backend as the core does: driver ENGINE FOLDER REQUESTS INSTANCES FAIL_EVERY KIND. FOLDER is a model's:
// for the kind "tokens" that of a plan (tests/support/native_triton.py), for "texts" that of a compiled tokenizer, for
// "both" that of a plan with one. Each instance has a thread, as in the server, and they are on several devices in
// turn. Instances go while runs are under way.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iterator>
#include <thread>

#include "backend/made_requests.h"

namespace {

constexpr int kDevices = 2;
const std::string kModel = R"({"name":"driven","max_batch_size":64,"input":[],"output":[],"parameters":{)";
const std::string kTokenizer = R"("padfree_tokenizer":{"string_value":"tokenizer.compiled.json"},)"
                               R"("padfree_max_length":{"string_value":"16"})";
const std::string kPlan = R"("padfree_model":{"string_value":"model.plan"})";

using Requests = std::deque<std::unique_ptr<core::Request>>;
using Maker = std::unique_ptr<core::Request>(made::Random&);

struct Kind {
  const char* name;
  Maker* make;
  std::string parameters;
};
const Kind kKinds[] = {{"tokens", made::ofTokens, kPlan},
                       {"texts", made::ofTexts, kTokenizer},
                       {"both", made::ofTokensOrTexts, kTokenizer + "," + kPlan}};

void serve(core::Instance& instance, Maker* make, int count, unsigned seed, Requests& requests) {
  made::Random random(seed);
  auto* handle = reinterpret_cast<TRITONBACKEND_ModelInstance*>(&instance);
  while (static_cast<int>(requests.size()) < count) {
    std::vector<TRITONBACKEND_Request*> batch;
    for (unsigned i = 0, size = 1 + random() % 12; i < size; ++i) {
      requests.push_back(make(random));
      if (random() % 30 == 0) requests.back()->is_cancelled = true;
      batch.push_back(reinterpret_cast<TRITONBACKEND_Request*>(requests.back().get()));
    }
    const auto size = static_cast<uint32_t>(batch.size());
    const std::string error = core::take(TRITONBACKEND_ModelInstanceExecute(handle, batch.data(), size));
    if (!error.empty()) core::fail("a batch that is given back: " + error);
    const size_t one = random() % requests.size();  // of those that are under way, perhaps
    if (random() % 4 == 0 && requests[one]->releases == 0) requests[one]->is_cancelled = true;
  }
  // While the last runs are under way.
  const std::string error = core::take(TRITONBACKEND_ModelInstanceFinalize(handle));
  if (!error.empty()) core::fail(error);
}

void require(TRITONSERVER_Error* error) {
  const std::string message = core::take(error);
  if (!message.empty()) core::fail(message);
}

void report(const std::vector<Requests>& of_instances) {
  int total = 0, unanswered = 0;
  for (const Requests& requests : of_instances) {
    for (const auto& request : requests) {
      ++total;
      if (request->releases != 1) core::fail("a request that was never released");
      if (request->answers != 1) ++unanswered;
    }
  }
  std::printf("%d requests: %d right, %d refused, %d cancelled, %d failed, %d unanswered, %d left\n", total,
              made::right.load(), made::refused.load(), made::cancelled.load(), made::failed.load(), unanswered,
              core::live_responses.load() + core::live_metrics.load());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) return 2;
  const int requests = std::atoi(arguments[3]), instances = std::atoi(arguments[4]);
  core::fail_every = std::atoi(arguments[5]);
  const Kind* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& one) { return std::strcmp(arguments[6], one.name) == 0; });
  if (kind == std::end(kKinds)) return 2;
  core::Backend backend{"{\"cmdline\":{\"engine\":\"" + std::string(arguments[1]) + "\"}}"};
  core::Model model{&backend, arguments[2], kModel + kind->parameters + "}}"};
  auto* backend_handle = reinterpret_cast<TRITONBACKEND_Backend*>(&backend);
  auto* model_handle = reinterpret_cast<TRITONBACKEND_Model*>(&model);
  require(TRITONBACKEND_Initialize(backend_handle));
  require(TRITONBACKEND_ModelInitialize(model_handle));
  std::deque<core::Instance> opened;
  std::vector<Requests> of_instances(instances);
  std::vector<std::thread> threads;
  for (int i = 0; i < instances; ++i) {
    opened.push_back({&model, "driven_" + std::to_string(i), i % kDevices});
    require(TRITONBACKEND_ModelInstanceInitialize(reinterpret_cast<TRITONBACKEND_ModelInstance*>(&opened.back())));
  }
  for (int i = 0; i < instances; ++i) {
    threads.emplace_back([&, i] { serve(opened[i], kind->make, requests / instances, 7 + i, of_instances[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  require(TRITONBACKEND_ModelFinalize(model_handle));
  require(TRITONBACKEND_Finalize(backend_handle));
  report(of_instances);
  return 0;
}
