// SPDX-License-Identifier: Apache-2.0
// Requests and responses.
#include "backend/handles.h"

using core::of;

namespace {

// An error now and then, where the tests ask for it.
TRITONSERVER_Error* sometimes() {
  static std::atomic<int> calls{0};
  const int every = core::fail_every;
  return every > 0 && ++calls % every == 0 ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "out of memory")
                                           : nullptr;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = static_cast<uint32_t>(of<core::Request>(request)->inputs.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request, uint32_t index,
                                                      TRITONBACKEND_Input** input) {
  *input = reinterpret_cast<TRITONBACKEND_Input*>(&of<core::Request>(request)->inputs[index]);
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* type, const int64_t** shape,
                                                  uint32_t* dims_count, uint64_t* bytes, uint32_t* buffers) {
  const auto* tensor = of<core::Tensor>(input);
  *name = tensor->name.c_str();
  *type = tensor->type;
  *shape = tensor->shape.data();
  *dims_count = static_cast<uint32_t>(tensor->shape.size());
  *bytes = tensor->bytes;
  *buffers = static_cast<uint32_t>(tensor->buffers.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** buffer,
                                              uint64_t* bytes, TRITONSERVER_MemoryType* memory_type, int64_t* id) {
  const core::Buffer& found = of<core::Tensor>(input)->buffers.at(index);
  *buffer = found.data.get();
  *bytes = found.bytes;
  *memory_type = found.on_device ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU;
  *id = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = static_cast<uint32_t>(of<core::Request>(request)->wanted.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, uint32_t index, const char** name) {
  *name = of<core::Request>(request)->wanted[index].c_str();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputBufferProperties(TRITONBACKEND_Request* request, const char* name,
                                                                size_t*, TRITONSERVER_MemoryType* memory_type,
                                                                int64_t* id) {
  // What is known before differs from what comes later, now and then.
  if (name[0] == 'h' && of<core::Request>(request)->inputs[0].shape.size() % 3 == 1) return sometimes();
  *memory_type = of<core::Request>(request)->outputs_on_device ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU;
  *id = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
  *is_cancelled = of<core::Request>(request)->is_cancelled;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t) {
  auto* ours = of<core::Request>(request);
  ours->inputs.clear();  // whoever reads them now is found
  if (ours->reports != 1) core::fail("a request is released without its statistics");
  if (++ours->releases != 1) core::fail("a request is released twice");
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
  if (TRITONSERVER_Error* error = sometimes()) return error;
  ++core::live_responses;
  *response = new TRITONBACKEND_Response{of<core::Request>(request), {}};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output,
                                                 const char* name, TRITONSERVER_DataType type, const int64_t* shape,
                                                 uint32_t dims_count) {
  core::Tensor& tensor = response->answer.outputs[name];
  tensor.name = name;
  tensor.type = type;
  tensor.shape.assign(shape, shape + dims_count);
  tensor.buffers.push_back({nullptr, 0, response->request->outputs_on_device});
  *output = reinterpret_cast<TRITONBACKEND_Output*>(&tensor);
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer, uint64_t bytes,
                                               TRITONSERVER_MemoryType* memory_type, int64_t* id) {
  if (TRITONSERVER_Error* error = sometimes()) return error;
  auto* tensor = of<core::Tensor>(output);
  core::Buffer& ours = tensor->buffers.front();
  ours.data = std::make_unique<char[]>(bytes);
  ours.bytes = tensor->bytes = bytes;
  *buffer = ours.data.get();
  *memory_type = ours.on_device ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU;
  *id = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t, TRITONSERVER_Error* error) {
  core::Request* request = response->request;
  if (request->releases != 0) core::fail("an answer after the request was released");
  if (++request->answers != 1) core::fail("two answers to one request");
  if (error != nullptr) {
    response->answer.is_error = true;
    response->answer.code = error->code;
    response->answer.message = error->message;
  }
  request->check(response->answer);
  delete response;
  --core::live_responses;
  return nullptr;
}

}  // extern "C"
