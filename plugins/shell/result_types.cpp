// SPDX-License-Identifier: Apache-2.0
#include "shell/result_types.h"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <utility>

#include "common/e4m3.h"
#include "shell/text.h"

namespace padfree {

Results::Results(const std::string& types, float y_scale)
    : activations(types != "e4m3" && types != "fp32"),
      e4m3(types == "e4m3" || types == "both"),
      fp32(types == "fp32" || types == "act_fp32"),
      y_scale(y_scale) {
  checkE4m3Scale(y_scale);
}

std::vector<FieldSpec> resultsFields(const std::vector<std::string>& more) {
  std::vector<std::string> types{"act", "e4m3", "both"};
  types.insert(types.end(), more.begin(), more.end());
  return {choiceField("results", types), nonNegativeRealField("y_scale")};
}

std::vector<FieldSpec> withResultsFields(std::vector<FieldSpec> others, const std::vector<std::string>& more) {
  for (FieldSpec& field : resultsFields(more)) others.push_back(std::move(field));
  return others;
}

void checkE4m3Scale(float y_scale) {
  if (y_scale >= kLeastE4m3Scale && y_scale <= kMostE4m3Scale) return;
  throw std::invalid_argument(text("y_scale is ", y_scale, "; allowed: from ", kLeastE4m3Scale, " to ", kMostE4m3Scale,
                                   "; calibrate the model again"));
}

int checkCapability(int least, const char* next_step) {
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    throw std::invalid_argument(
        text("the GPU cannot be asked for its architecture: ", cudaGetErrorString(status), next_step));
  }
  const int version = properties.major * 10 + properties.minor;
  if (version >= least) return version;
  throw std::invalid_argument(text("the GPU ", properties.name, " has compute capability ", properties.major, '.',
                                   properties.minor, "; allowed: ", least / 10, '.', least % 10, " and newer",
                                   next_step));
}

}  // namespace padfree
