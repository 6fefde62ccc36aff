// SPDX-License-Identifier: Apache-2.0
#include "register/python.h"

#include <dlfcn.h>

namespace padfree {
namespace {

// Python's stable C API, looked up: the library must load where there is no Python.
template <class Function>
Function* findSymbol(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

bool importPythonModule(const char* name) {
  auto* isInitialized = findSymbol<int()>("Py_IsInitialized");
  auto* lockInterpreter = findSymbol<int()>("PyGILState_Ensure");
  auto* unlockInterpreter = findSymbol<void(int)>("PyGILState_Release");
  auto* importModule = findSymbol<void*(const char*)>("PyImport_ImportModule");
  auto* dropReference = findSymbol<void(void*)>("Py_DecRef");
  auto* clearError = findSymbol<void()>("PyErr_Clear");
  if (isInitialized == nullptr || lockInterpreter == nullptr || unlockInterpreter == nullptr ||
      importModule == nullptr || dropReference == nullptr || clearError == nullptr || isInitialized() == 0) {
    return false;
  }
  const int state = lockInterpreter();  // ctypes calls dlopen with the lock held: this only counts up
  void* module = importModule(name);
  if (module == nullptr) {
    clearError();
  } else {
    dropReference(module);  // sys.modules holds it
  }
  unlockInterpreter(state);
  return module != nullptr;
}

}  // namespace padfree
