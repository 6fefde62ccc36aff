# SPDX-License-Identifier: Apache-2.0
# Libraries of the host alone, which need a C++ compiler and nothing else:
#
# libpadfree_triton_batching.so   a token budget for Triton's dynamic batcher; the server that loads it has the functions
#                                 that it leaves undefined
# libtriton_padfree.so            Triton's backend "padfree"; the same goes for it
# libpadfree_text.so              tokens of plain texts, looked up word by word; without it Python does the same, slowly
include_guard()

# A macro: enable_language must run in the top-level scope.
macro(padfree_add_host_libraries)
  if(CMAKE_CXX_COMPILER AND NOT PADFREE_BUILD_PLUGINS STREQUAL "OFF")
    enable_language(CXX)
    padfree_host_library(triton_batching)
    # nodelete: the server unloads the library of a model before the thread that calls it has ended.
    target_link_options(padfree_triton_batching PRIVATE LINKER:-z,nodelete)
    padfree_host_library(triton_backend)
    padfree_triton_backend()
    padfree_host_library(text)
    target_link_options(padfree_text PRIVATE LINKER:--no-undefined)
  endif()
endmacro()

# The backend's file is named as the server looks for it, reads JSON as the batching library does, and makes tokens of
# texts with plugins/tokenizer.
function(padfree_triton_backend)
  file(GLOB tokenizer CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/plugins/tokenizer/*.cpp")
  target_sources(padfree_triton_backend PRIVATE "${PROJECT_SOURCE_DIR}/plugins/triton_batching/json.cpp" ${tokenizer})
  target_link_libraries(padfree_triton_backend PRIVATE ${CMAKE_DL_LIBS})
  target_link_options(padfree_triton_backend PRIVATE -pthread)  # FindThreads compiles a program to know that
  set_target_properties(padfree_triton_backend PROPERTIES OUTPUT_NAME triton_padfree)
  target_compile_options(padfree_triton_backend PRIVATE $<$<CONFIG:Release>:-O2>)  # -O3 takes 2 s longer
endfunction()

# padfree_host_library(<name>): libpadfree_<name>.so of plugins/<name>, which exports what exports.map there lists.
function(padfree_host_library name)
  set(folder "${PROJECT_SOURCE_DIR}/plugins/${name}")
  set(library padfree_${name})
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  add_library(${library} SHARED ${sources})
  set_target_properties(${library} PROPERTIES
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS "${folder}/exports.map"
    # One translation unit: most of the time to compile a small file goes into the standard library's headers.
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_include_directories(${library} PRIVATE "${PROJECT_SOURCE_DIR}/plugins")
  target_compile_options(${library} PRIVATE -Wall -Wextra)
  target_link_options(${library} PRIVATE "LINKER:--version-script=${folder}/exports.map" LINKER:--exclude-libs,ALL
                      LINKER:--gc-sections)
  install(TARGETS ${library} LIBRARY DESTINATION lib)
endfunction()
