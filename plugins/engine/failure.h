// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "engine/engine_abi.h"

namespace padfree::engine {

// Why a plan cannot run here; the backend shows the message.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs `body`; what it throws goes into `error`, and `failure` comes back: nothing may throw into the backend.
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
