// SPDX-License-Identifier: Apache-2.0
// Hostile configurations and requests for Triton's batching library, with the stand-in of the core.
#include <array>
#include <list>

#include "input.h"
#include "triton_batching/triton_abi.h"

namespace {

// As triton_core.cpp has it.
struct Request {
  const int64_t* shape;
  uint32_t dims_count;
  bool is_cancelled;
  const char* input;
};

struct Sent {
  std::vector<int64_t> shape;
  std::string name;
  Request request;
};

bool failed(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
  return error != nullptr;
}

}  // namespace

void feedBatching(Input input) {
  const std::string config = input.text();
  TRITONBACKEND_Batcher* batcher = nullptr;
  auto* model = reinterpret_cast<TRITONBACKEND_Model*>(const_cast<char*>(config.c_str()));
  if (failed(TRITONBACKEND_ModelBatcherInitialize(&batcher, model))) return;
  std::array<void*, 4> payloads{};
  void** payload = payloads.data();
  std::list<Sent> sent;
  failed(TRITONBACKEND_ModelBatchInitialize(batcher, payload));
  while (!input.isEmpty()) {
    const uint8_t step = input.byte();
    if (step % 4 == 0) {
      payload = &payloads[step / 4 % payloads.size()];
      failed(TRITONBACKEND_ModelBatchInitialize(batcher, payload));
    } else if (step % 4 == 1 && !sent.empty()) {
      sent.back().request.is_cancelled = true;
    } else if (*payload != nullptr) {
      Sent& one = sent.emplace_back();
      one.shape.resize(input.byte() % 9);
      for (int64_t& size : one.shape) size = step % 8 == 2 ? input.number() : input.byte();
      one.name = step % 8 == 3 ? input.text() : "input_ids";
      one.request = {one.shape.data(), static_cast<uint32_t>(one.shape.size()), false, one.name.c_str()};
      bool include = false;
      failed(TRITONBACKEND_ModelBatchIncludeRequest(reinterpret_cast<TRITONBACKEND_Request*>(&one.request), *payload,
                                                    &include));
    }
  }
  for (void* batch : payloads) failed(TRITONBACKEND_ModelBatchFinalize(batch));
  failed(TRITONBACKEND_ModelBatcherFinalize(batcher));
}
