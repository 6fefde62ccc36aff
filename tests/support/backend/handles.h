// SPDX-License-Identifier: Apache-2.0
// What stands behind the handles that the backend gets.
#pragma once

#include "backend/core.h"

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

namespace core {

template <class Ours, class Theirs>
Ours* of(Theirs* handle) {
  return reinterpret_cast<Ours*>(handle);
}

}  // namespace core
