// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "engine/engine_abi.h"

namespace padfree {

// The library that runs plans; it stays open. Throws Failure if the file cannot be loaded, or is not of this version.
const PadfreeEngineApi& loadEngineLibrary(const std::string& path);

}  // namespace padfree
