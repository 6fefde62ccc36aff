// SPDX-License-Identifier: Apache-2.0
// Stands in for Triton's core where libpadfree_triton_batching.so is tested without a server: a model is its
// configuration's text, a request has one input.
#include <cstdlib>
#include <cstring>

#include "triton_batching/triton_abi.h"

struct TRITONSERVER_Error {
  int code;
  char message[1024];
};

struct Request {
  const int64_t* shape;
  uint32_t dims_count;
  bool is_cancelled;
  const char* input;
};

#pragma GCC visibility push(default)
extern "C" {

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
  auto* error = static_cast<TRITONSERVER_Error*>(std::calloc(1, sizeof(TRITONSERVER_Error)));
  error->code = code;
  std::strncpy(error->message, message, sizeof(error->message) - 1);
  return error;
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) {
  std::free(error);
}

TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error) {
  return error->code;
}

const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) {
  return error->message;
}

TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t, TRITONSERVER_Message** config) {
  *config = reinterpret_cast<TRITONSERVER_Message*>(model);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** text,
                                                        size_t* size) {
  *text = reinterpret_cast<const char*>(message);
  *size = std::strlen(*text);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message*) {
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name,
                                               TRITONBACKEND_Input** input) {
  if (std::strcmp(name, reinterpret_cast<Request*>(request)->input) != 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "no such input");
  }
  *input = reinterpret_cast<TRITONBACKEND_Input*>(request);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
  *is_cancelled = reinterpret_cast<Request*>(request)->is_cancelled;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char**, TRITONSERVER_DataType*,
                                                  const int64_t** shape, uint32_t* dims_count, uint64_t*, uint32_t*) {
  const auto* request = reinterpret_cast<Request*>(input);
  *shape = request->shape;
  *dims_count = request->dims_count;
  return nullptr;
}

}  // extern "C"
#pragma GCC visibility pop
