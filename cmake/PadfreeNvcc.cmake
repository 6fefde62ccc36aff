# SPDX-License-Identifier: Apache-2.0
# Chooses nvcc: CMAKE_CUDA_COMPILER, CUDACXX, CUDA_HOME, then the nvidia-cuda-nvcc package, then PATH.
#
# padfree_find_nvcc() sets ENV{CUDACXX}, PADFREE_NVCC_VERSION ("13.0.88"), PADFREE_NVCC_SOURCE, and takes from
# PADFREE_ARCHITECTURES what this nvcc does not know.
include_guard()

set(PADFREE_NVCC_MINIMUM 12.4)
set(PADFREE_NVCC_HOPPER 12.8)  # the first that knows sm_100 and sm_120; Hopper's kernels of 12.4 do not run

macro(padfree_find_nvcc)
  padfree_choose_nvcc()
  if(PADFREE_NVCC)
    padfree_check_nvcc()
    padfree_use_nvcc()
  else()
    padfree_missing("no nvcc" "pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' \
'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*', or set CUDACXX to an nvcc >= ${PADFREE_NVCC_MINIMUM}")
  endif()
endmacro()

# Sets PADFREE_NVCC ("" where there is none) and PADFREE_NVCC_SOURCE.
function(padfree_choose_nvcc)
  if(CMAKE_CUDA_COMPILER AND (NOT CMAKE_CUDA_COMPILER STREQUAL "$CACHE{PADFREE_NVCC_USED}"
                              OR "$CACHE{PADFREE_NVCC_USED_SOURCE}" STREQUAL CMAKE_CUDA_COMPILER))
    set(source CMAKE_CUDA_COMPILER)
    set(nvcc "${CMAKE_CUDA_COMPILER}")
  elseif(NOT "$ENV{CUDACXX}" STREQUAL "")
    set(source CUDACXX)
    find_program(nvcc "$ENV{CUDACXX}" NO_CACHE)
    if(NOT nvcc)
      set(nvcc "$ENV{CUDACXX}")
    endif()
  elseif(NOT "$ENV{CUDA_HOME}" STREQUAL "")
    set(source CUDA_HOME)
    set(nvcc "$ENV{CUDA_HOME}/bin/nvcc")
  else()
    padfree_packaged_nvcc(nvcc)
    set(source "Python package")
    if(NOT nvcc)
      set(source PATH)
      unset(nvcc)  # an empty variable counts as found since CMake 4.4
      find_program(nvcc nvcc NO_CACHE)
    endif()
  endif()
  if(NOT nvcc)
    set(nvcc "")
  endif()
  set(PADFREE_NVCC "${nvcc}" PARENT_SCOPE)
  set(PADFREE_NVCC_SOURCE "${source}" PARENT_SCOPE)
endfunction()

# padfree_packaged_nvcc(<variable>): nvcc of the nvidia-cuda-nvcc package (nvidia/cu13), or "".
function(padfree_packaged_nvcc variable)
  padfree_python_package_folder(nvidia.cu13 cuda)
  if(EXISTS "${cuda}/bin/nvcc")
    padfree_stable_link(cuda "${cuda}" cuda)
    set(${variable} "${cuda}/bin/nvcc" PARENT_SCOPE)
  else()
    set(${variable} "" PARENT_SCOPE)
  endif()
endfunction()

macro(padfree_check_nvcc)
  # The user may have named it, so going on without would hide a mistake.
  execute_process(COMMAND "${PADFREE_NVCC}" --version OUTPUT_VARIABLE padfree_banner ERROR_QUIET
                  RESULT_VARIABLE padfree_status)
  if(NOT padfree_status EQUAL 0 OR NOT padfree_banner MATCHES "V([0-9]+\\.[0-9]+\\.[0-9]+)")
    message(FATAL_ERROR "${PADFREE_NVCC_SOURCE} names '${PADFREE_NVCC}', which does not run as nvcc; name an nvcc >= "
                        "${PADFREE_NVCC_MINIMUM}, or unset it to use the one from the Python packages")
  endif()
  set(PADFREE_NVCC_VERSION "${CMAKE_MATCH_1}")
  if(PADFREE_NVCC_VERSION VERSION_LESS PADFREE_NVCC_MINIMUM)
    message(FATAL_ERROR "nvcc ${PADFREE_NVCC_VERSION} ('${PADFREE_NVCC}', from ${PADFREE_NVCC_SOURCE}) is older than "
                        "${PADFREE_NVCC_MINIMUM}; name a newer one by CUDACXX, or unset CUDACXX and CUDA_HOME to use "
                        "the one from the Python packages")
  endif()
  if(PADFREE_NVCC_VERSION VERSION_LESS PADFREE_NVCC_HOPPER)
    set(padfree_wanted "${PADFREE_ARCHITECTURES}")
    list(FILTER PADFREE_ARCHITECTURES EXCLUDE REGEX "^(90|1[0-9][0-9])")
    if(NOT PADFREE_ARCHITECTURES)
      message(FATAL_ERROR "nvcc ${PADFREE_NVCC_VERSION} ('${PADFREE_NVCC}', from ${PADFREE_NVCC_SOURCE}) does not "
                          "compile for Hopper and Blackwell (${padfree_wanted}); name one >= ${PADFREE_NVCC_HOPPER} by CUDACXX, "
                          "or unset CUDACXX and CUDA_HOME to use the one from the Python packages")
    elseif(NOT PADFREE_ARCHITECTURES STREQUAL padfree_wanted)
      message(WARNING "nvcc ${PADFREE_NVCC_VERSION} does not compile for Hopper and Blackwell: the library is built for "
                      "${PADFREE_ARCHITECTURES} and not for ${padfree_wanted}; "
                      "nvcc >= ${PADFREE_NVCC_HOPPER} builds for all")
    endif()
  endif()
endmacro()

# Hands the chosen nvcc to CMake. A build folder made with another one forgets it.
macro(padfree_use_nvcc)
  if(NOT "$CACHE{PADFREE_NVCC_USED}" STREQUAL PADFREE_NVCC)
    unset(CMAKE_CUDA_COMPILER CACHE)
    unset(CMAKE_CUDA_FLAGS CACHE)
    file(REMOVE "${CMAKE_BINARY_DIR}/CMakeFiles/${CMAKE_VERSION}/CMakeCUDACompiler.cmake")
  endif()
  set(PADFREE_NVCC_USED "${PADFREE_NVCC}" CACHE INTERNAL "nvcc of the last configuration")
  set(PADFREE_NVCC_USED_SOURCE "${PADFREE_NVCC_SOURCE}" CACHE INTERNAL "what named it")
  set(ENV{CUDACXX} "${PADFREE_NVCC}")
  # The Python packages have lib/ where nvcc looks in lib64/ or, in a toolkit of a distribution, elsewhere.
  cmake_path(GET PADFREE_NVCC PARENT_PATH padfree_nvcc_bin)
  if(EXISTS "${padfree_nvcc_bin}/../lib/libcudart_static.a")
    set(ENV{CUDAFLAGS} "$ENV{CUDAFLAGS} -L${padfree_nvcc_bin}/../lib")
  endif()
endmacro()
