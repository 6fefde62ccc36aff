# SPDX-License-Identifier: Apache-2.0
# What compiling the plugin library needs: a host compiler, nvcc, CUTLASS and TensorRT's headers.
#
# padfree_find_requirements() enables CXX and CUDA and sets PADFREE_BUILD. Where something is missing, PADFREE_MISSING
# and PADFREE_NEXT_STEPS (lists of equal length) say what and what to do about it.
include_guard()
include(CheckLanguage)
include(PadfreePythonPackages)
include(PadfreeNvcc)
include(PadfreeTensorRTHeaders)

macro(padfree_missing what next_step)
  list(APPEND PADFREE_MISSING "${what}")
  list(APPEND PADFREE_NEXT_STEPS "${next_step}")
endmacro()

# A macro: enable_language must run in the top-level scope.
macro(padfree_find_requirements)
  set(PADFREE_BUILD FALSE)
  set(PADFREE_MISSING "")
  set(PADFREE_NEXT_STEPS "")
  if(NOT PADFREE_BUILD_PLUGINS MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "PADFREE_BUILD_PLUGINS is '${PADFREE_BUILD_PLUGINS}'; allowed: AUTO, ON, OFF")
  endif()

  if(PADFREE_BUILD_PLUGINS STREQUAL "OFF")
    padfree_missing("the plugin library was switched off (PADFREE_BUILD_PLUGINS=OFF)"
                    "install again without that define")
  else()
    check_language(CXX)
    if(NOT CMAKE_CXX_COMPILER)
      padfree_missing("no C++ compiler" "install g++ 9 or newer (Debian, Ubuntu: apt-get install g++), or set CXX")
    endif()
    padfree_find_nvcc()
    padfree_find_cutlass()
    padfree_find_tensorrt_headers()
    if(NOT PADFREE_MISSING)
      padfree_enable_languages()
    endif()
  endif()

  if(PADFREE_MISSING)
    list(JOIN PADFREE_MISSING "; " padfree_reasons)
    list(JOIN PADFREE_NEXT_STEPS "; " padfree_steps)
    if(PADFREE_BUILD_PLUGINS STREQUAL "ON")
      message(FATAL_ERROR "The plugin library cannot be built: ${padfree_reasons}. Next step: ${padfree_steps}.")
    elseif(PADFREE_BUILD_PLUGINS STREQUAL "AUTO")
      message(WARNING "Installing the Python part alone, without the TensorRT plugins: ${padfree_reasons}. "
                      "To get them: ${padfree_steps}; then install again. `padfree doctor` repeats this.")
    endif()
  else()
    set(PADFREE_BUILD TRUE)
  endif()
endmacro()

# nvcc is tried on a scratch project first, so that a host compiler it refuses is a message and not a failed install.
macro(padfree_enable_languages)
  enable_language(CXX)
  set(ENV{CUDAHOSTCXX} "${CMAKE_CXX_COMPILER}")
  set(CMAKE_CUDA_ARCHITECTURES 80-real)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
  else()
    padfree_missing("nvcc ${PADFREE_NVCC_VERSION} does not work with the C++ compiler ${CMAKE_CXX_COMPILER}"
                    "install a g++ that this nvcc supports, or name another nvcc (>= 12.4) by CUDACXX")
  endif()
endmacro()

# PADFREE_CUTLASS_INCLUDE: CUTLASS_DIR (a checkout) first, then the nvidia-cutlass package.
macro(padfree_find_cutlass)
  padfree_python_package_folder(cutlass_library padfree_cutlass_package)
  find_path(PADFREE_CUTLASS_FOUND cute/tensor.hpp NO_DEFAULT_PATH NO_CACHE
            HINTS "$ENV{CUTLASS_DIR}/include" "${padfree_cutlass_package}/source/include")
  if(PADFREE_CUTLASS_FOUND)
    padfree_stable_link(cutlass "${PADFREE_CUTLASS_FOUND}" PADFREE_CUTLASS_INCLUDE)
  else()
    padfree_missing("no CUTLASS headers" "pip install 'nvidia-cutlass==4.2.*', or set CUTLASS_DIR to a checkout of CUTLASS")
  endif()
endmacro()
