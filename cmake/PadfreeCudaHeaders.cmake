# SPDX-License-Identifier: Apache-2.0
# CUDA's headers alone, for what is compiled without nvcc: of the Python packages, or of a toolkit.
#
# padfree_find_cuda_headers() sets PADFREE_CUDA_INCLUDE, one folder or two.
include_guard()
include(PadfreePythonPackages)

macro(padfree_find_cuda_headers)
  padfree_python_package_folder(nvidia.cu13 padfree_cuda_package)
  if(padfree_cuda_package)
    padfree_stable_link(cuda "${padfree_cuda_package}" padfree_cuda_package)
  endif()
  # cuda_bf16.h includes nv/target, which is in a package of its own, and in toolkits from 13 on in a folder of its own.
  unset(PADFREE_CUDA_INCLUDE CACHE)
  set(PADFREE_CUDA_INCLUDE "")
  foreach(padfree_folder "$ENV{CUDA_HOME}/include" "${padfree_cuda_package}/include" /usr/local/cuda/include)
    if(PADFREE_CUDA_INCLUDE OR NOT EXISTS "${padfree_folder}/cuda_bf16.h")
      continue()
    endif()
    if(EXISTS "${padfree_folder}/nv/target")
      set(PADFREE_CUDA_INCLUDE "${padfree_folder}")
    elseif(EXISTS "${padfree_folder}/cccl/nv/target")
      set(PADFREE_CUDA_INCLUDE "${padfree_folder}" "${padfree_folder}/cccl")
    endif()
  endforeach()
  if(NOT PADFREE_CUDA_INCLUDE)
    padfree_missing("no CUDA headers" "pip install 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' \
'nvidia-cuda-cccl==13.0.*', or set CUDA_HOME")
  endif()
endmacro()
