# SPDX-License-Identifier: Apache-2.0
# CUDA's headers alone, for what is compiled without nvcc: of the Python packages, or of a toolkit.
#
# padfree_find_cuda_headers() sets PADFREE_CUDA_INCLUDE.
include_guard()
include(PadfreePythonPackages)

macro(padfree_find_cuda_headers)
  padfree_python_package_folder(nvidia.cu13 padfree_cuda_package)
  if(padfree_cuda_package)
    padfree_stable_link(cuda "${padfree_cuda_package}" padfree_cuda_package)
  endif()
  unset(PADFREE_CUDA_INCLUDE CACHE)
  find_path(PADFREE_CUDA_INCLUDE cuda_bf16.h NO_DEFAULT_PATH
            HINTS "$ENV{CUDA_HOME}/include" "${padfree_cuda_package}/include" /usr/local/cuda/include)
  if(NOT PADFREE_CUDA_INCLUDE)
    padfree_missing("no CUDA headers" "pip install 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' \
'nvidia-cuda-cccl==13.0.*', or set CUDA_HOME")
  endif()
endmacro()
