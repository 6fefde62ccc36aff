// SPDX-License-Identifier: Apache-2.0
#include "shell/result_types.h"

#include <cuda_runtime_api.h>

#include "common/text.h"

namespace padfree {

Results::Results(const std::string& types, float y_scale)
    : activations(types != "e4m3" && types != "fp32"),
      e4m3(types == "e4m3" || types == "both"),
      fp32(types == "fp32" || types == "act_fp32"),
      y_scale(y_scale) {}

int checkCapability(int minimum, const char* next_step) {
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    throwInvalid("the GPU cannot be asked for its architecture: ", cudaGetErrorString(status), next_step);
  }
  const int version = properties.major * 10 + properties.minor;
  if (version >= minimum) return version;
  throwInvalid("the GPU ", properties.name, " has compute capability ", properties.major, '.', properties.minor,
               "; allowed: ", minimum / 10, '.', minimum % 10, " and newer", next_step);
}

}  // namespace padfree
