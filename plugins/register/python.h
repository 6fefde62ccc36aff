// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace padfree {

// Imports the module where this process is a Python interpreter: what it will import later is in the process then.
// False where it is none, or the import fails.
bool importPythonModule(const char* name);

}  // namespace padfree
