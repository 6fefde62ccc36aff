// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "engine/engine_abi.h"

namespace padfree::engine {

// Why a plan cannot run here; the backend shows the message to its user.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs `body`. If it throws, writes the message to `error` and returns `failure`: no exception may reach the backend.
template <class Result, class Body>
Result guarded(PadfreeError* error, Result failure, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& caught) {
    std::snprintf(error->text, sizeof(error->text), "%s", caught.what());
  }
  return failure;
}

}  // namespace padfree::engine
