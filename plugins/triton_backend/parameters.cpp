// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/parameters.h"

#include <charconv>

#include "common/text.h"
#include "triton_batching/failure.h"

namespace padfree {

void refuseParameter(const std::string& name, const std::string& value, const std::string& allowed) {
  throw Failure("'" + name + "' is '" + value.substr(0, 40) + "', allowed: " + allowed + "; correct config.pbtxt");
}

void refuseUnknownParameter(const std::string& name, const std::string& allowed) {
  throw Failure("unknown parameter '" + name + "', allowed: " + allowed +
                "; correct config.pbtxt, or write the repository again with padfree triton");
}

int64_t readNumber(const std::string& name, const std::string& value, int64_t least, int64_t most) {
  int64_t number = 0;
  const char* const last = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), last, number);
  if (error != std::errc() || end != last || number < least || number > most) {
    refuseParameter(name, value, text(least, "..", most));
  }
  return number;
}

bool readChoice(const std::string& name, const std::string& value, const char* yes, const char* no) {
  if (value != yes && value != no) refuseParameter(name, value, std::string(yes) + ", " + no);
  return value == yes;
}

const std::string& readFileName(const std::string& name, const std::string& value) {
  if (value.empty() || value.find('/') != value.npos) refuseParameter(name, value, "the name of a file");
  return value;
}

void checkResponseCache(const Json& config) {
  // The cache's key covers what a request's inputs hold, but not their shapes nor which outputs were asked for.
  if (config["response_cache"]["enable"].text() != "true" || config["output"].items().size() <= 1) return;
  throw Failure(
      "response_cache does not go with several outputs: whoever asks for one of them would get what "
      "another request for the same tokens asked for; take response_cache out of config.pbtxt");
}

}  // namespace padfree
