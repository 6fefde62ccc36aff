// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "triton_batching/json.h"

namespace padfree {

// A whole number in a JSON file. Throws std::invalid_argument if it is not one, or not in least..most.
inline int64_t readNumber(const Json& value, int64_t least, int64_t most) {
  const std::string& text = value.text();
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || errno != 0 || number < least || number > most) {
    throw std::invalid_argument("'" + text.substr(0, 40) + "', allowed: " + std::to_string(least) + ".." +
                                std::to_string(most));
  }
  return number;
}

}  // namespace padfree
