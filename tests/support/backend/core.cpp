// SPDX-License-Identifier: Apache-2.0
#include "backend/core.h"

#include <cstdio>
#include <cstdlib>

namespace core {

std::atomic<int> live_responses{0}, live_metrics{0}, fail_every{0};

void fail(const std::string& reason) {
  std::printf("%s\n", reason.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

}  // namespace core

struct TRITONSERVER_Error {
  int code;
  std::string message;
};
struct TRITONSERVER_Message {
  std::string text;
};
struct TRITONBACKEND_Response {
  core::Request* request;
  core::Answer answer;
};

namespace {

template <class Ours, class Theirs>
Ours* of(Theirs* handle) {
  return reinterpret_cast<Ours*>(handle);
}

// An error now and then, where the tests ask for it.
TRITONSERVER_Error* sometimes() {
  static std::atomic<int> calls{0};
  const int every = core::fail_every;
  return every > 0 && ++calls % every == 0 ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "out of memory")
                                           : nullptr;
}

}  // namespace

std::string core::take(TRITONSERVER_Error* error) {
  const std::string message = error == nullptr ? "" : error->message;
  delete error;
  return message;
}

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
  return new TRITONSERVER_Error{code, message};
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) {
  delete error;
}
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error) {
  return error->code;
}
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) {
  return error->message.c_str();
}
TRITONSERVER_Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel, const char*, int, const char*) {
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** text,
                                                        size_t* size) {
  *text = message->text.c_str();
  *size = message->text.size();
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message** message, const char* text,
                                                              size_t size) {
  *message = new TRITONSERVER_Message{{text, size}};
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
  delete message;
  return nullptr;
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char*, TRITONSERVER_ParameterType, const void* value) {
  return reinterpret_cast<TRITONSERVER_Parameter*>(new std::string(static_cast<const char*>(value)));
}
void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) {
  delete of<std::string>(parameter);
}
TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily** family, TRITONSERVER_MetricKind,
                                                 const char* name, const char*) {
  *family = reinterpret_cast<TRITONSERVER_MetricFamily*>(new std::string(name));
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family) {
  if (core::live_metrics != 0) core::fail("a family of metrics goes before its metrics");
  delete of<std::string>(family);
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricNew(TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily*,
                                           const TRITONSERVER_Parameter**, uint64_t) {
  ++core::live_metrics;
  *metric = reinterpret_cast<TRITONSERVER_Metric*>(new std::atomic<uint64_t>(0));
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric) {
  --core::live_metrics;
  delete of<std::atomic<uint64_t>>(metric);
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric* metric, double value) {
  *of<std::atomic<uint64_t>>(metric) += static_cast<uint64_t>(value);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
  const char* version = std::getenv("CORE_API_MINOR");
  *major = 1;
  *minor = version == nullptr ? 19 : std::atoi(version);
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend* backend, TRITONSERVER_Message** config) {
  // The core's own, which stays; here it is one for all of the process.
  static TRITONSERVER_Message message;
  message.text = of<core::Backend>(backend)->config;
  *config = &message;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_BackendState(TRITONBACKEND_Backend* backend, void** state) {
  *state = of<core::Backend>(backend)->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend* backend, void* state) {
  of<core::Backend>(backend)->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model*, uint64_t* version) {
  *version = 1;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model* model, TRITONBACKEND_ArtifactType*,
                                                  const char** location) {
  *location = of<core::Model>(model)->folder.c_str();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBackend(TRITONBACKEND_Model* model, TRITONBACKEND_Backend** backend) {
  *backend = reinterpret_cast<TRITONBACKEND_Backend*>(of<core::Model>(model)->backend);
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t, TRITONSERVER_Message** config) {
  *config = new TRITONSERVER_Message{of<core::Model>(model)->config};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model*, bool* wanted) {
  *wanted = true;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelSetConfig(TRITONBACKEND_Model* model, uint32_t, TRITONSERVER_Message* config) {
  of<core::Model>(model)->config = config->text;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state) {
  *state = of<core::Model>(model)->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) {
  of<core::Model>(model)->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance* instance, const char** name) {
  *name = of<core::Instance>(instance)->name.c_str();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance*,
                                                    TRITONSERVER_InstanceGroupKind* kind) {
  *kind = TRITONSERVER_INSTANCEGROUPKIND_GPU;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance*, int32_t* device) {
  *device = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance,
                                                     TRITONBACKEND_Model** model) {
  *model = reinterpret_cast<TRITONBACKEND_Model*>(of<core::Instance>(instance)->model);
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state) {
  *state = of<core::Instance>(instance)->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state) {
  of<core::Instance>(instance)->state = state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance*,
                                                                TRITONBACKEND_Request* request, bool, uint64_t called,
                                                                uint64_t started, uint64_t ended, uint64_t now) {
  if (of<core::Request>(request)->releases != 0) core::fail("statistics of a request that was released");
  if (called > started || started > ended || ended > now) core::fail("times that do not follow each other");
  ++of<core::Request>(request)->reports;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance*, uint64_t size,
                                                                     uint64_t, uint64_t, uint64_t, uint64_t) {
  if (size < 1) core::fail("a batch of nothing");
  return nullptr;
}

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
