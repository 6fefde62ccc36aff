# SPDX-License-Identifier: Apache-2.0
# Tools that come as Python packages: where they lie, and paths to them that stay the same from build to build.
include_guard()

# padfree_python(<variable>): an interpreter, or "".
function(padfree_python variable)
  set(python "${Python_EXECUTABLE}")
  if(NOT python)
    unset(python)  # an empty variable counts as found since CMake 4.4
    find_program(python NAMES python3 python NO_CACHE)
  endif()
  if(NOT python)
    set(python "")
  endif()
  set(${variable} "${python}" PARENT_SCOPE)
endfunction()

# padfree_python_package_folder(<import name> <variable>): the package's folder, or "" where it cannot be imported.
function(padfree_python_package_folder name variable)
  padfree_python(python)
  set(folder "")
  if(python)
    set(script "import importlib.util as u; s = u.find_spec('${name}'); print(list(s.submodule_search_locations)[0] if s else '', end='')")
    execute_process(COMMAND "${python}" -c "${script}" OUTPUT_VARIABLE folder ERROR_QUIET RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      set(folder "")
    endif()
  endif()
  set(${variable} "${folder}" PARENT_SCOPE)
endfunction()

# padfree_stable_link(<name> <target> <variable>): a link in the build folder. An isolated build has its packages in a
# temporary folder; compile commands that name it would differ in every build, and no object would ever be reused.
function(padfree_stable_link name target variable)
  set(link "${CMAKE_BINARY_DIR}/toolchain/${name}")
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/toolchain")
  file(REMOVE "${link}")
  file(CREATE_LINK "${target}" "${link}" SYMBOLIC)
  set(${variable} "${link}" PARENT_SCOPE)
endfunction()
