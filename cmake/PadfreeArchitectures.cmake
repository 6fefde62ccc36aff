# SPDX-License-Identifier: Apache-2.0
# What device code is compiled for.
#
# padfree_choose_architectures() sets PADFREE_ARCHITECTURES: what the environment variable PADFREE_CUDA_ARCHITECTURES
# says, else the define of that name, else "native", the GPUs of this machine. Empty where there is none: the library is
# then one of plugins without device code.
include_guard()

set(PADFREE_ALL_ARCHITECTURES 80 90a 100 120)  # one for each first number of a compute capability (contract/architectures.py)

function(padfree_choose_architectures)
  set(wanted "$ENV{PADFREE_CUDA_ARCHITECTURES}")
  if(wanted STREQUAL "")
    set(wanted "${PADFREE_CUDA_ARCHITECTURES}")
  endif()
  if(wanted STREQUAL "" OR wanted STREQUAL "native")
    padfree_native_architectures(architectures)
  elseif(wanted STREQUAL "all")
    set(architectures ${PADFREE_ALL_ARCHITECTURES})
  else()
    string(REGEX REPLACE "[, ]+" ";" architectures "${wanted}")
    padfree_check_architectures("${wanted}" "${architectures}")
    list(TRANSFORM architectures REPLACE "^90$" "90a")  # of Hopper's own instructions plain 90 has none
    list(REMOVE_DUPLICATES architectures)
  endif()
  set(PADFREE_ARCHITECTURES "${architectures}" PARENT_SCOPE)
endfunction()

function(padfree_check_architectures wanted architectures)
  foreach(architecture ${architectures})
    if(NOT architecture MATCHES "^([89][0-9]|1[0-9][0-9])[af]?$")
      message(FATAL_ERROR "PADFREE_CUDA_ARCHITECTURES is '${wanted}'; allowed: native (the GPUs of this machine), all "
                          "(${PADFREE_ALL_ARCHITECTURES}), or a list of those")
    endif()
  endforeach()
endfunction()

# padfree_native_architectures(<variable>): of the GPUs that CUDA can use here.
function(padfree_native_architectures variable)
  set(architectures "")
  padfree_python(python)
  set(lines "")
  if(python)
    execute_process(COMMAND "${python}" "${PROJECT_SOURCE_DIR}/cmake/find_gpus.py" OUTPUT_VARIABLE lines
                    ERROR_VARIABLE error RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT status EQUAL 0)
      message(WARNING "The GPUs of this machine cannot be found:\n${error}")
      set(lines "")
    endif()
  endif()
  string(REPLACE "\n" ";" lines "${lines}")
  list(REMOVE_DUPLICATES lines)
  foreach(line ${lines})
    if(NOT line MATCHES "^([^ ]+) ([^ ]+) (.*)$")
      continue()
    elseif(CMAKE_MATCH_1 STREQUAL "-")
      message(WARNING "${CMAKE_MATCH_3} (compute capability ${CMAKE_MATCH_2}) is no GPU that padfree has kernels for: "
                      "nothing is compiled for it")
    else()
      message(STATUS "GPU: ${CMAKE_MATCH_3} (compute capability ${CMAKE_MATCH_2}), compiled for ${CMAKE_MATCH_1}")
      list(APPEND architectures ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES architectures)
  if(NOT architectures)
    message(STATUS "No GPU here that padfree has kernels for: the library gets no device code. "
                   "PADFREE_CUDA_ARCHITECTURES=all compiles for all GPUs, a list such as 80;90a for these")
  endif()
  set(${variable} "${architectures}" PARENT_SCOPE)
endfunction()
