// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace padfree {

// One string from anything that streams; numbers are written alike in every program, whatever its locale.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());
  (stream << ... << parts);
  return stream.str();
}

template <class Part>
std::string join(const std::vector<Part>& parts, const char* separator) {
  std::string joined;
  for (const Part& part : parts) joined += text(joined.empty() ? "" : separator, part);
  return joined;
}

// Throws what callers did wrong: one message of these parts.
template <class... Parts>
[[noreturn]] void throwInvalid(const Parts&... parts) {
  throw std::invalid_argument(text(parts...));
}

// Throws what has failed: one message of these parts.
template <class... Parts>
[[noreturn]] void throwError(const Parts&... parts) {
  throw std::runtime_error(text(parts...));
}

}  // namespace padfree
