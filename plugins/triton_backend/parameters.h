// SPDX-License-Identifier: Apache-2.0
// Reads the values of a configuration's parameters, which are strings.
#pragma once

#include <cstdint>
#include <string>

#include "triton_batching/json.h"

namespace padfree {

constexpr const char* kPrefix = "padfree_";

[[noreturn]] void refuseParameter(const std::string& name, const std::string& value, const std::string& allowed);
[[noreturn]] void refuseUnknownParameter(const std::string& name, const std::string& allowed);

int64_t readNumber(const std::string& name, const std::string& value, int64_t least, int64_t most);
// Whether the value is the first of the two allowed ones.
bool readChoice(const std::string& name, const std::string& value, const char* yes, const char* no);
inline bool readFlag(const std::string& name, const std::string& value) {
  return readChoice(name, value, "true", "false");
}
// The name of a file in the version's folder; names that lead out of it are refused.
const std::string& readFileName(const std::string& name, const std::string& value);

// Throws Failure if the server's response cache could give answers to other requests.
void checkResponseCache(const Json& config);

}  // namespace padfree
