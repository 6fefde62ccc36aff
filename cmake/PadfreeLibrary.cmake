# SPDX-License-Identifier: Apache-2.0
# libpadfree.so (kernels and TensorRT plugins), libpadfree_register.so (registers them when loaded), libpadfree_engine.so
# (runs plans for Triton's native backend), libpadfree_kernels.so (launchers for the kernel tests).
include_guard()

set(PADFREE_PLUGIN_ROOT "${PROJECT_SOURCE_DIR}/plugins")

# TensorRT's two entry points, two for the builder alone and those of include/padfree.h; hidden visibility does not cover
# the standard library's templates.
set(PADFREE_EXPORTS "${CMAKE_CURRENT_LIST_DIR}/exports.map")

# nvcc's -O is the host's alone: -O3 for what launches kernels took 2 % of a build.
set(CMAKE_CUDA_FLAGS_RELEASE "-O1 -DNDEBUG")

# Files that are compiled as one, a group a line: nvcc needs 1.1 s for the headers of each. Regular expressions. No file of
# a group defines what another one does, nor aligns `extern __shared__` memory of the same name otherwise: the larger
# alignment would be that of both, and their kernels would need more memory.
set(PADFREE_COMPILED_TOGETHER
  "linear/sm90/half/any_chunks_(fp16|bf16)"
  "linear/sm90/half/heads_(fp16|bf16)"
  "attention/sm90/ring_(fp16|bf16)"
  "attention/sm90/(wide|prefix)_(fp16|bf16)"
  "attention/sm90/(window|disentangled)_kernel"
  "linear/sm90/(resident/half_(fp16|bf16)|launch)"
  "attention/mma_(fp16|bf16)"
  "(index/kernel|layer_norm/(fp32_)?kernel)"
  "(embedding/kernel|pool/normed_kernel|qk_norm_rotary/kernel)"
  "(layer_norm|embedding)/e4m3_kernel"
  "((pack|unpack|pool|post_norm|schedule|token_rows)/kernel|linear/measure)")

# The same for one architecture on few cores, which long files keep as busy as short ones: fp16 and bf16 together, and
# kinds of GEMMs. These groups come before those above, and files of both are in these.
cmake_host_system_information(RESULT PADFREE_CORES QUERY NUMBER_OF_LOGICAL_CORES)
set(PADFREE_FEW_CORES 4)
set(PADFREE_COMPILED_TOGETHER_ON_FEW_CORES
  "linear/sm90/half/pairs_(fp16|bf16)"
  "linear/sm90/half/chunks_(fp16|bf16)"
  "linear/sm90/half/(heads|in_place)_(fp16|bf16)"
  "linear/sm90/half/(any_chunks|rare)_(fp16|bf16)"
  "linear/sm90/e4m3/(chunks|in_place)_(fp16|bf16)"
  "linear/sm90/(e4m3/pairs_(fp16|bf16)|resident/half_(fp16|bf16)|launch)"
  "linear/sm90/(e4m3/rare|resident/e4m3)_(fp16|bf16)"
  "attention/sm90/short_(fp16|bf16)"
  "attention/mma_prefix_(fp16|bf16)"
  "((index|layer_norm|embedding)/kernel|layer_norm/fp32_kernel|pool/normed_kernel)"
  "(linear/mma/int8_(fp16|bf16)|rotary/kernel)")

function(padfree_add_libraries)
  padfree_use_object_cache()
  file(GLOB shells CONFIGURE_DEPENDS "${PADFREE_PLUGIN_ROOT}/*/plugin.cpp" "${PADFREE_PLUGIN_ROOT}/*/tables.cpp"
       "${PADFREE_PLUGIN_ROOT}/shell/*.cpp" "${PADFREE_PLUGIN_ROOT}/c_api/*.cpp")
  file(GLOB registration CONFIGURE_DEPENDS "${PADFREE_PLUGIN_ROOT}/register/*.cpp")
  set(architectures "${PADFREE_ARCHITECTURES}")
  if(PADFREE_PTX)  # newer GPUs compile it
    list(APPEND architectures ${PADFREE_ALL_ARCHITECTURES} ptx)
    list(REMOVE_DUPLICATES architectures)
  endif()
  string(REPLACE ";" "," architectures "${architectures}")
  set_source_files_properties("${PADFREE_PLUGIN_ROOT}/shell/device_code.cpp" PROPERTIES COMPILE_DEFINITIONS
                              "PADFREE_ARCHITECTURES=\"${architectures}\"")

  # Ninja compiles in this order: what is long and not split comes first.
  add_library(padfree SHARED ${shells})
  padfree_shared_library(padfree)
  set_target_properties(padfree PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_compile_options(padfree PRIVATE $<$<CONFIG:Release>:-O1>)  # it hands over to launchers: -O3 takes 4 s longer
  padfree_add_engine_library()
  if(PADFREE_ARCHITECTURES)
    padfree_add_kernel_objects(launchers)
  else()
    padfree_add_refusing_launchers(launchers)
  endif()
  target_include_directories(padfree PRIVATE "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(padfree PRIVATE ${launchers})
  if(PADFREE_ARCHITECTURES)
    set_target_properties(padfree PROPERTIES LINKER_LANGUAGE CUDA)
  endif()
  padfree_export_entry_points(padfree)
  install(TARGETS padfree LIBRARY DESTINATION lib)
  install(FILES "${PROJECT_SOURCE_DIR}/include/padfree.h" DESTINATION include)

  add_library(padfree_register SHARED ${registration})
  padfree_shared_library(padfree_register)
  target_link_libraries(padfree_register PRIVATE ${CMAKE_DL_LIBS})
  padfree_export_entry_points(padfree_register)
  install(TARGETS padfree_register LIBRARY DESTINATION lib)

  if(PADFREE_KERNEL_TESTS)
    if(NOT PADFREE_ARCHITECTURES)
      message(FATAL_ERROR "PADFREE_KERNEL_TESTS is ON, but nothing is compiled for a GPU: set PADFREE_CUDA_ARCHITECTURES to "
                          "what the tests will run on, such as 90a")
    endif()
    add_library(padfree_kernels SHARED "${PROJECT_SOURCE_DIR}/tests/kernels/bindings.cpp")
    padfree_shared_library(padfree_kernels)
    set_target_properties(padfree_kernels PROPERTIES LINKER_LANGUAGE CUDA CXX_VISIBILITY_PRESET default)
    target_link_libraries(padfree_kernels PRIVATE ${launchers})
  endif()
endfunction()

# padfree_add_engine_library(): no device code, and as the backend one translation unit.
function(padfree_add_engine_library)
  set(folder "${PADFREE_PLUGIN_ROOT}/engine")
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  add_library(padfree_engine SHARED ${sources})
  padfree_shared_library(padfree_engine)
  set_target_properties(padfree_engine PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_link_libraries(padfree_engine PRIVATE ${CMAKE_DL_LIBS})
  target_link_options(padfree_engine PRIVATE "LINKER:--version-script=${folder}/exports.map")
  set_property(TARGET padfree_engine APPEND PROPERTY LINK_DEPENDS "${folder}/exports.map")
  install(TARGETS padfree_engine LIBRARY DESTINATION lib)
endfunction()

# padfree_add_refusing_launchers(<variable>): in place of the kernels launchers that refuse. The C++ compiler is enough.
function(padfree_add_refusing_launchers variable)
  file(GLOB sources CONFIGURE_DEPENDS "${PADFREE_PLUGIN_ROOT}/no_device/*.cpp")
  add_library(padfree_no_device OBJECT ${sources} "${PADFREE_PLUGIN_ROOT}/linear/tiling.cpp")
  padfree_compile_options(padfree_no_device)
  set(${variable} padfree_no_device PARENT_SCOPE)
endfunction()

# Hopper's longest files, from 28 s on where row kernels take 20 to 26 s: on many cores these are compiled in between.
set(PADFREE_LONG_FILES "/(attention/sm90/(short|ring)|linear/sm90/(half/(pairs|(any_)?chunks|in_place)|e4m3/(pairs|in_place)))_")

# padfree_longest_first(<variable>): sorts files by how long they take to compile. Ninja starts them in this order where
# it has not built them before, and no core is left with a long file at the end. (It takes one library after the other.)
function(padfree_longest_first variable)
  set(sorted "")
  foreach(pattern "/attention/sm90/short_" "/linear/(sm90/half/(pairs|chunks)|mma/(half|e4m3))_"
                  "/linear/sm90/(e4m3/pairs_fp16|half/in_place)" "/linear/sm90/e4m3/in_place_" "/attention/sm90/ring_"
                  "/linear/sm90/(half/any_chunks|e4m3/pairs)_" "/attention/sm90/(wide|prefix)_"
                  "/linear/sm90/(resident/e4m3|half/heads)_" "/linear/sm90/(half/rare|e4m3/chunks)_" "/linear/sm90/e4m3/"
                  "/(linear/sm90/(half|resident)|attention/mma)" "/(embedding|index|layer_norm)/" "/linear/mma/"
                  "/attention/disentangled" "")
    set(matches "${${variable}}")
    list(FILTER matches INCLUDE REGEX "(${pattern}).*\\.cu$")
    list(APPEND sorted ${matches})
  endforeach()
  list(APPEND sorted ${${variable}})
  list(REMOVE_DUPLICATES sorted)
  set(${variable} "${sorted}" PARENT_SCOPE)
endfunction()

# padfree_add_kernel_objects(<variable>): object libraries of all kernels, and of what launches them. A file in a folder
# sm90 is compiled for that one architecture, and not at all where the list has none of its number; PADFREE_ARCH_<number>
# is defined for each number in the list, so that a dispatcher knows what was compiled. A library for Hopper alone lacks
# the general GEMM kernels but those of int8, the general attention kernel for prefixes, and shapes of the others that
# Hopper does not use (PADFREE_HOPPER_ALONE), except for the kernel tests, which run them there. Files in folders sm90 are
# compiled without these defines: so their objects are the same whatever else is compiled, and the object cache needs one
# of each. What multiplies e4m3 or converts to it is compiled for 8.9 as well where the list has 8.0 or 8.6, whose code
# would run on 8.9 otherwise. GEMMs with sums in fp16 are for 8.6, 8.9 and 12.x alone: 8.6 stands in for 8.0 in the list,
# except in builds with PADFREE_PTX, and its code runs on 8.9.
function(padfree_add_kernel_objects variable)
  file(GLOB sources CONFIGURE_DEPENDS "${PADFREE_PLUGIN_ROOT}/*/*.cu" "${PADFREE_PLUGIN_ROOT}/*/sm*/*.cu"
       "${PADFREE_PLUGIN_ROOT}/*/sm*/*/*.cu" "${PADFREE_PLUGIN_ROOT}/linear/mma/*.cu"
       "${PADFREE_PLUGIN_ROOT}/*/dispatch.cpp" "${PADFREE_PLUGIN_ROOT}/linear/tiling.cpp"
       "${PADFREE_PLUGIN_ROOT}/linear/cost_model.cpp" "${PADFREE_PLUGIN_ROOT}/linear/mma/menu.cpp")
  padfree_both_types(sources)
  set(numbers "")
  foreach(architecture ${PADFREE_ARCHITECTURES})
    string(REGEX MATCH "^[0-9]+" number "${architecture}")
    list(APPEND numbers ${number})
    set(architecture_${number} "${architecture}")
  endforeach()
  set(hopper_alone OFF)
  if(numbers STREQUAL "90" AND NOT PADFREE_KERNEL_TESTS)
    set(hopper_alone ON)
    list(FILTER sources EXCLUDE REGEX "/(linear/mma/(half_|e4m3_|fp16_sums)|attention/mma_prefix_).*\\.cu$")
  endif()
  padfree_longest_first(sources)
  set(general "${sources}")
  list(FILTER general EXCLUDE REGEX "/sm[0-9]+/.*\\.cu$")
  set(e4m3 "${general}")
  list(FILTER e4m3 INCLUDE REGEX "/(linear/mma/e4m3_.*|(layer_norm|embedding)/e4m3_kernel)\\.cu$")
  set(rows "${general}")
  list(FILTER rows INCLUDE REGEX "/((index|layer_norm|embedding|qk_norm_rotary)/(fp32_)?|pool/normed_)kernel\\.cu$")
  set(fp16_sums "${general}")
  list(FILTER fp16_sums INCLUDE REGEX "/linear/mma/fp16_sums\\.cu$")
  list(REMOVE_ITEM general ${e4m3} ${rows} ${fp16_sums})
  set(e4m3_architectures "${PADFREE_ARCHITECTURES}")
  if(numbers MATCHES "8[0-8]" AND NOT "89" IN_LIST numbers)
    list(APPEND e4m3_architectures 89)
  endif()
  set(fp16_sums_architectures "")
  set(code_of_80 86)
  if(PADFREE_PTX)
    set(code_of_80 80)
  endif()
  foreach(architecture ${PADFREE_ARCHITECTURES})
    if(architecture MATCHES "^(86|12)" OR (architecture MATCHES "^89" AND NOT numbers MATCHES "8[06]"))
      list(APPEND fp16_sums_architectures "${architecture}")
    elseif(architecture MATCHES "^80" AND NOT "86" IN_LIST numbers)
      list(APPEND fp16_sums_architectures ${code_of_80})
    endif()
  endforeach()
  # Ninja compiles in this order: the longest files are those of the first library, the short ones those of the last.
  set(libraries "")
  if(PADFREE_CORES GREATER PADFREE_FEW_CORES)
    set(long "${sources}")
    list(FILTER long INCLUDE REGEX "${PADFREE_LONG_FILES}.*\\.cu$")
    list(REMOVE_ITEM sources ${long})
    padfree_special_kernel_objects(libraries _long "${long}")
  endif()
  padfree_kernel_object_library(padfree_kernel_objects_e4m3 "${e4m3_architectures}" "${e4m3}")
  padfree_kernel_object_library(padfree_kernel_objects_rows "${PADFREE_ARCHITECTURES}" "${rows}")
  list(APPEND libraries padfree_kernel_objects_e4m3 padfree_kernel_objects_rows)
  padfree_special_kernel_objects(libraries "" "${sources}")
  padfree_kernel_object_library(padfree_kernel_objects "${PADFREE_ARCHITECTURES}" "${general}")
  if(fp16_sums_architectures AND fp16_sums)
    padfree_kernel_object_library(padfree_kernel_objects_fp16_sums "${fp16_sums_architectures}" "${fp16_sums}")
    list(APPEND libraries padfree_kernel_objects_fp16_sums)
    target_compile_definitions(padfree_kernel_objects PRIVATE PADFREE_FP16_SUMS=1)
  endif()
  foreach(number ${numbers})
    target_compile_definitions(padfree_kernel_objects PRIVATE PADFREE_ARCH_${number}=1)
  endforeach()
  if(hopper_alone)
    target_compile_definitions(padfree_kernel_objects PRIVATE PADFREE_HOPPER_ALONE=1)
  endif()
  list(APPEND libraries padfree_kernel_objects)
  set(${variable} "${libraries}" PARENT_SCOPE)
endfunction()

# padfree_special_kernel_objects(<variable> <suffix> <sources>): appends a library for each architecture that has files of its
# own among these. For padfree_add_kernel_objects, whose numbers and architectures it reads.
function(padfree_special_kernel_objects variable suffix sources)
  foreach(number ${numbers})
    set(special "${sources}")
    list(FILTER special INCLUDE REGEX "/sm${number}/.*\\.cu$")
    if(special)
      padfree_kernel_object_library(padfree_kernel_objects_sm${number}${suffix} "${architecture_${number}}" "${special}")
      list(APPEND ${variable} padfree_kernel_objects_sm${number}${suffix})
    endif()
  endforeach()
  set(${variable} "${${variable}}" PARENT_SCOPE)
endfunction()

# padfree_both_types(<variable>): replaces each file that names PADFREE_ELEMENT, the type of activations, by one for fp16 and
# one for bf16, in the folder elements of the build.
function(padfree_both_types variable)
  set(result "")
  foreach(file ${${variable}})
    file(STRINGS "${file}" elements REGEX "PADFREE_ELEMENT" LIMIT_COUNT 1)
    if(NOT elements)
      list(APPEND result "${file}")
      continue()
    endif()
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${PADFREE_PLUGIN_ROOT}" OUTPUT_VARIABLE name)
    cmake_path(REMOVE_EXTENSION name OUTPUT_VARIABLE stem)
    foreach(element "bf16:__nv_bfloat16" "fp16:half")
      string(REPLACE ":" ";" element "${element}")
      list(POP_FRONT element suffix type)
      set(copy "${CMAKE_BINARY_DIR}/elements/${stem}_${suffix}.cu")
      file(CONFIGURE OUTPUT "${copy}" @ONLY CONTENT
           "#define PADFREE_ELEMENT ${type}\n#include \"${name}\"\n#undef PADFREE_ELEMENT\n")
      list(APPEND result "${copy}")
    endforeach()
  endforeach()
  set(${variable} "${result}" PARENT_SCOPE)
endfunction()

# padfree_compile_together(<variable>): replaces the files of each group by one that includes them. (CMake does so by itself
# for nvcc only from 3.31 on.)
function(padfree_compile_together variable)
  set(files "${${variable}}")
  set(patterns ${PADFREE_COMPILED_TOGETHER})
  list(LENGTH PADFREE_ARCHITECTURES architectures)
  if(PADFREE_CORES LESS_EQUAL PADFREE_FEW_CORES AND architectures EQUAL 1)
    list(PREPEND patterns ${PADFREE_COMPILED_TOGETHER_ON_FEW_CORES})
  endif()
  set(number 0)
  foreach(pattern ${patterns})
    math(EXPR number "${number} + 1")
    set(group "${files}")
    list(FILTER group INCLUDE REGEX "/${pattern}\\.cu$")
    list(LENGTH group size)
    if(size LESS 2)
      continue()
    endif()
    set(text "")
    foreach(file ${group})
      cmake_path(IS_PREFIX PADFREE_PLUGIN_ROOT "${file}" is_source)
      if(is_source)
        cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${PADFREE_PLUGIN_ROOT}")
        string(APPEND text "#include \"${file}\"\n")
      else()
        file(READ "${file}" copy)
        string(APPEND text "${copy}")
      endif()
    endforeach()
    set(together "${CMAKE_BINARY_DIR}/together/kernels${number}.cu")
    file(CONFIGURE OUTPUT "${together}" CONTENT "${text}" @ONLY)
    list(GET group 0 first)
    list(FIND files "${first}" at)
    list(INSERT files ${at} "${together}")
    list(REMOVE_ITEM files ${group})
  endforeach()
  set(${variable} "${files}" PARENT_SCOPE)
endfunction()

function(padfree_kernel_object_library name architectures sources)
  padfree_compile_together(sources)
  add_library(${name} OBJECT ${sources})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  foreach(source ${sources})
    if(source MATCHES "\\.cu$")
      set_source_files_properties("${source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  if(PADFREE_PTX)
    target_compile_definitions(${name} PRIVATE PADFREE_PTX=1)
  endif()
  if(PADFREE_PTX MATCHES "^[0-9]")  # machine code made of the newest PTX
    list(GET architectures -1 newest)
    target_compile_options(${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_${newest},code=sm_${PADFREE_PTX}>)
    set(architectures OFF)
  elseif(PADFREE_PTX)
    list(TRANSFORM architectures APPEND "-virtual")
  else()
    list(TRANSFORM architectures APPEND "-real")
  endif()
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
  padfree_compile_options(${name})
  if(PADFREE_PERTURB)
    target_compile_definitions(${name} PRIVATE PADFREE_PERTURB=1)
  endif()
endfunction()

function(padfree_compile_options name)
  if(PADFREE_ARCHITECTURES)
    target_include_directories(${name} SYSTEM PRIVATE "${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}")
  else()
    target_include_directories(${name} SYSTEM PRIVATE "${PADFREE_CUDA_INCLUDE}")
  endif()
  set_target_properties(${name} PROPERTIES
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
    CUDA_RUNTIME_LIBRARY Static
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${name} PRIVATE "${PADFREE_PLUGIN_ROOT}")
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>
    # nvcc compresses large files of device code only: without -compress-all that of many small ones takes 7 times as much.
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra -Xfatbin=-compress-all>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${PADFREE_LINE_INFO}>>:-lineinfo>)
  # Kernels convert by intrinsics: without CUDA's operators for it, a file takes a quarter of a second less. It takes as
  # much for the Bessel functions and their like of libstdc++'s <cmath>: with their header's guard they are left out.
  target_compile_definitions(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:__CUDA_NO_HALF_CONVERSIONS__;__CUDA_NO_BFLOAT16_CONVERSIONS__;_GLIBCXX_BITS_SPECFUN_H=1>)
endfunction()

function(padfree_export_entry_points name)
  target_link_options(${name} PRIVATE "LINKER:--version-script=${PADFREE_EXPORTS}")
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS "${PADFREE_EXPORTS}")
endfunction()

# What all shared libraries have in common: TensorRT's headers without the library, nothing left undefined.
function(padfree_shared_library name)
  padfree_compile_options(${name})
  if(PADFREE_ARCHITECTURES)
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES OFF)
  endif()
  target_include_directories(${name} SYSTEM PRIVATE "${PADFREE_TENSORRT_INCLUDE}")
  target_compile_definitions(${name} PRIVATE PADFREE_VERSION="${PROJECT_VERSION}")
  target_link_options(${name} PRIVATE LINKER:--exclude-libs,ALL LINKER:--no-undefined LINKER:--gc-sections)
endfunction()
