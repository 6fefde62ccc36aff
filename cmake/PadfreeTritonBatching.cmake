# SPDX-License-Identifier: Apache-2.0
# libpadfree_triton_batching.so: a token budget for Triton's dynamic batcher. Needs a C++ compiler alone; the server that loads
# the library has the functions that it leaves undefined.
include_guard()

# A macro: enable_language must run in the top-level scope.
macro(padfree_add_triton_batching)
  if(CMAKE_CXX_COMPILER AND NOT PADFREE_BUILD_PLUGINS STREQUAL "OFF")
    enable_language(CXX)
    padfree_triton_batching_library()
  endif()
endmacro()

function(padfree_triton_batching_library)
  set(exports "${PROJECT_SOURCE_DIR}/plugins/triton_batching/exports.map")
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/plugins/triton_batching/*.cpp")
  add_library(padfree_triton_batching SHARED ${sources})
  set_target_properties(padfree_triton_batching PROPERTIES
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS "${exports}")
  target_include_directories(padfree_triton_batching PRIVATE "${PROJECT_SOURCE_DIR}/plugins")
  target_compile_options(padfree_triton_batching PRIVATE -Wall -Wextra)
  # nodelete: the server unloads the library of a model before the thread that calls it has ended.
  target_link_options(padfree_triton_batching PRIVATE "LINKER:--version-script=${exports}" LINKER:--exclude-libs,ALL
                      LINKER:--gc-sections LINKER:-z,nodelete)
  install(TARGETS padfree_triton_batching LIBRARY DESTINATION lib)
endfunction()
