# SPDX-License-Identifier: Apache-2.0
# padfree_fuzz: the C++ that meets untrusted input on the host (the shells of the plugins, Triton's batching library, what
# its backend reads from files, the table of words, compiled tokenizers), with AddressSanitizer and
# UndefinedBehaviorSanitizer, and the fuzzer that feeds it. Device code and launchers stay out: it needs headers of CUDA and
# TensorRT, but no nvcc. tests/sanitizers/run builds and runs it.
include_guard()
include(PadfreeRequirements)

# A macro: enable_language must run in the top-level scope.
macro(padfree_add_sanitized)
  enable_language(CXX)
  padfree_find_tensorrt_headers()
  padfree_find_cuda_headers()
  if(PADFREE_MISSING)
    message(FATAL_ERROR "The sanitized build cannot be made: ${PADFREE_MISSING}. Next step: ${PADFREE_NEXT_STEPS}.")
  endif()
  padfree_fuzz_program()
endmacro()

function(padfree_fuzz_program)
  set(plugins "${PROJECT_SOURCE_DIR}/plugins")
  file(GLOB sources CONFIGURE_DEPENDS "${plugins}/*/plugin.cpp" "${plugins}/*/tables.cpp" "${plugins}/shell/*.cpp"
       "${plugins}/linear/tiling.cpp" "${plugins}/no_device/*.cpp"
       "${plugins}/triton_batching/*.cpp" "${plugins}/text/*.cpp" "${plugins}/tokenizer/*.cpp"
       "${plugins}/triton_backend/metadata.cpp" "${plugins}/triton_backend/model_settings.cpp"
       "${plugins}/triton_backend/parameters.cpp" "${plugins}/triton_backend/text_settings.cpp"
       "${PROJECT_SOURCE_DIR}/tests/sanitizers/*.cpp")
  add_executable(padfree_fuzz ${sources} "${PROJECT_SOURCE_DIR}/tests/support/triton_core.cpp")
  set_target_properties(padfree_fuzz PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
  target_include_directories(padfree_fuzz PRIVATE "${plugins}")
  target_include_directories(padfree_fuzz SYSTEM PRIVATE "${PADFREE_TENSORRT_INCLUDE}" "${PADFREE_CUDA_INCLUDE}")
  target_compile_definitions(padfree_fuzz PRIVATE PADFREE_VERSION="${PROJECT_VERSION}")
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(padfree_fuzz PRIVATE -Wall -Wextra -O1 -g ${sanitizers})
  target_link_options(padfree_fuzz PRIVATE ${sanitizers})
  target_link_libraries(padfree_fuzz PRIVATE ${CMAKE_DL_LIBS})
  # The examples are compiled where their headers are; they are linked where TensorRT is.
  add_library(padfree_example OBJECT "${PROJECT_SOURCE_DIR}/examples/cpp/main.cpp"
              "${PROJECT_SOURCE_DIR}/examples/cpp/vectors.cpp")
  set_target_properties(padfree_example PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
  target_include_directories(padfree_example SYSTEM PRIVATE "${PADFREE_TENSORRT_INCLUDE}" "${PADFREE_CUDA_INCLUDE}")
  target_compile_options(padfree_example PRIVATE -Wall -Wextra -Werror)
endfunction()
