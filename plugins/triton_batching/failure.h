// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "common/text.h"
#include "triton_batching/triton_abi.h"

namespace padfree {

// Why a request, a run or a model failed, with the code that its caller sees.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& message, TRITONSERVER_Error_Code code = TRITONSERVER_ERROR_INVALID_ARG)
      : std::runtime_error(message), code_(code) {}

  TRITONSERVER_Error_Code code() const { return code_; }
  TRITONSERVER_Error* toTriton() const { return TRITONSERVER_ErrorNew(code_, what()); }

 private:
  TRITONSERVER_Error_Code code_;
};

// Throws what callers did wrong: one message of these parts.
template <class... Parts>
[[noreturn]] void throwFailure(const Parts&... parts) {
  throw Failure(text(parts...));
}

// Throws what a function of the server has returned, if that is an error.
inline void check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  const Failure failure(TRITONSERVER_ErrorMessage(error), TRITONSERVER_ErrorCode(error));
  TRITONSERVER_ErrorDelete(error);
  throw failure;
}

// For calls whose errors cannot be reported to anyone: true if there was no error.
inline bool succeeded(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
  return error == nullptr;
}

// Runs `body` and returns what it throws as an error: no exception may reach the server.
template <class Body>
TRITONSERVER_Error* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.toTriton();
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

// Runs `body` and returns what it throws as the failure of a request or a run.
template <class Body>
std::optional<Failure> attempt(Body&& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Failure& failure) {
    return failure;
  } catch (const std::exception& error) {
    return Failure(error.what(), TRITONSERVER_ERROR_INTERNAL);
  }
}

}  // namespace padfree
