// SPDX-License-Identifier: Apache-2.0
// What this library uses of Triton's C interfaces, declared here so that building it needs no Triton. The server that
// loads the library has the functions. Source: triton-inference-server/core, include/triton/core/tritonserver.h and
// tritonbackend.h (functions and codes are added there, never changed, within major version 1).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TRITONSERVER_Error;
struct TRITONSERVER_Message;
struct TRITONBACKEND_Batcher;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_Request;

using TRITONSERVER_Error_Code = int;
constexpr TRITONSERVER_Error_Code TRITONSERVER_ERROR_INTERNAL = 1;
constexpr TRITONSERVER_Error_Code TRITONSERVER_ERROR_INVALID_ARG = 3;

using TRITONSERVER_DataType = int;

// Every function returns null, or an error that belongs to the caller.
TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error);
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error);
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error);

TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** text, size_t* size);
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message);

TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t config_version,
                                              TRITONSERVER_Message** config);
TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name,
                                               TRITONBACKEND_Input** input);
TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled);
// The shape begins with the batch dimension. Pointers to what is not wanted may be null.
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* type, const int64_t** shape,
                                                  uint32_t* dims_count, uint64_t* byte_size, uint32_t* buffer_count);

// What this library provides to the server.
#pragma GCC visibility push(default)
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model);
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher);
TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** batch);
TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* batch, bool* include);
TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* batch);
#pragma GCC visibility pop

}  // extern "C"
