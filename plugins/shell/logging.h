// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace padfree {

// Sends one error line to TensorRT's logger (10.x or 11.x), or to stderr where TensorRT has none. Thread-safe.
void logError(const std::string& message) noexcept;

// Runs `body`; what it throws is logged after `who`, and `failure` comes back: nothing may throw into TensorRT.
template <class Result, class Body>
Result guard(const std::string& who, Result failure, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    try {
      logError(who + ": " + error.what());
    } catch (...) {
      logError("out of memory");
    }
  } catch (...) {
    logError("unknown exception");
  }
  return failure;
}

}  // namespace padfree
