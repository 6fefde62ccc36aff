// SPDX-License-Identifier: Apache-2.0
// Errors, messages, metrics and the backend.
#include <cstdio>
#include <cstdlib>

#include "backend/handles.h"

using core::of;

namespace core {

std::atomic<int> live_responses{0}, live_metrics{0}, fail_every{0};

void fail(const std::string& reason) {
  std::printf("%s\n", reason.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

std::string take(TRITONSERVER_Error* error) {
  const std::string message = error == nullptr ? "" : error->message;
  delete error;
  return message;
}

}  // namespace core

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

}  // extern "C"
