// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <string>

namespace padfree {

// The path of a file in the folder of the library that holds `function`; its name where that is not known.
template <class Function>
std::string besideLibraryOf(Function* function, const std::string& name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(function), &info) == 0 || info.dli_fname == nullptr) return name;
  const std::string self = info.dli_fname;
  return self.substr(0, self.rfind('/') + 1) + name;
}

}  // namespace padfree
