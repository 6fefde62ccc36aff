# SPDX-License-Identifier: Apache-2.0
# What compiling the plugin library needs: a host compiler, TensorRT's headers, and nvcc, or for a library without device
# code CUDA's headers alone.
#
# padfree_find_requirements() sets PADFREE_ARCHITECTURES and PADFREE_BUILD, and enables CXX and, with architectures, CUDA.
# Where something is missing, PADFREE_MISSING and PADFREE_NEXT_STEPS (lists of equal length) say what, and what to do
# about it.
include_guard()
include(CheckLanguage)
include(PadfreeArchitectures)
include(PadfreeCudaHeaders)
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
    padfree_choose_architectures()
    if(PADFREE_ARCHITECTURES)
      padfree_find_nvcc()
    else()
      padfree_find_cuda_headers()
    endif()
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

macro(padfree_enable_languages)
  enable_language(CXX)
  if(PADFREE_ARCHITECTURES)
    padfree_enable_cuda()
  endif()
endmacro()

# nvcc is tried on a file first, so that a host compiler it refuses is a message and not a failed install. The device's
# compilers run, the host's reads CUDA's headers alone: that takes less than half as long. (check_language would take
# several times as long.)
macro(padfree_enable_cuda)
  set(ENV{CUDAHOSTCXX} "${CMAKE_CXX_COMPILER}")
  set(CMAKE_CUDA_ARCHITECTURES 80-real)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(padfree_status 0)
  if(NOT CMAKE_CUDA_COMPILER)
    set(padfree_try "${CMAKE_BINARY_DIR}/CMakeFiles/try_nvcc")
    file(WRITE "${padfree_try}.cu" "__global__ void kernel() {}\n")
    separate_arguments(padfree_flags NATIVE_COMMAND "$ENV{CUDAFLAGS}")
    execute_process(COMMAND "$ENV{CUDACXX}" ${padfree_flags} -cubin -arch=sm_80 -ccbin "${CMAKE_CXX_COMPILER}"
                            "${padfree_try}.cu" -o "${padfree_try}.cubin"
                    RESULT_VARIABLE padfree_status OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(padfree_status EQUAL 0)
    padfree_know_cuda_abi()
    enable_language(CUDA)
  else()
    padfree_missing("nvcc ${PADFREE_NVCC_VERSION} does not work with the C++ compiler ${CMAKE_CXX_COMPILER}"
                    "install a g++ that this nvcc supports, or name another nvcc (>= 12.4) by CUDACXX")
  endif()
endmacro()

# The host's code in CUDA files is compiled and linked by the C++ compiler: what CMake has found out about that holds for
# them, and need not be found again by nvcc, which took a third of the configuration.
macro(padfree_know_cuda_abi)
  if(CMAKE_CXX_ABI_COMPILED)
    foreach(padfree_fact COMPILER_ARCHITECTURE_ID COMPILER_ABI SIZEOF_DATA_PTR BYTE_ORDER LIBRARY_ARCHITECTURE
            IMPLICIT_INCLUDE_DIRECTORIES IMPLICIT_LINK_LIBRARIES IMPLICIT_LINK_DIRECTORIES
            IMPLICIT_LINK_FRAMEWORK_DIRECTORIES COMPILER_LINKER COMPILER_LINKER_ID COMPILER_LINKER_VERSION
            COMPILER_LINKER_FRONTEND_VARIANT COMPILER_LINKER_ARCHITECTURE_FLAGS)
      set(CMAKE_CUDA_${padfree_fact} "${CMAKE_CXX_${padfree_fact}}")
    endforeach()
    set(CMAKE_CUDA_ABI_COMPILED TRUE)
  endif()
endmacro()
