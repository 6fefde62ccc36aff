// SPDX-License-Identifier: Apache-2.0
// The server's messages, which hold JSON.
#pragma once

#include <memory>

#include "triton_batching/failure.h"
#include "triton_batching/json.h"

namespace padfree {

struct MessageDeleter {
  void operator()(TRITONSERVER_Message* message) const { succeeded(TRITONSERVER_MessageDelete(message)); }
};
using Message = std::unique_ptr<TRITONSERVER_Message, MessageDeleter>;

inline Json decode(TRITONSERVER_Message* message) {
  const char* text = nullptr;
  size_t size = 0;
  check(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  return Json::parse({text, size});
}

inline Json configurationOf(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message = nullptr;
  check(TRITONBACKEND_ModelConfig(model, 1, &message));
  const Message owner(message);
  return decode(message);
}

}  // namespace padfree
