// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "triton_backend/triton_abi.h"

namespace padfree {

// An instance of a model of either kind.
class ServedInstance {
 public:
  virtual ~ServedInstance() = default;

  // Answers the requests, now or soon. Returns when the instance is ready for further ones.
  virtual void execute(TRITONBACKEND_Request** requests, uint32_t count) = 0;
};

}  // namespace padfree
