// SPDX-License-Identifier: Apache-2.0
// Which GPUs the library has device code for.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace padfree {

// The architectures that were compiled, such as "80,90a"; "" for none.
const char* architectures();

// Whether CUDA refused something for want of code for the GPU.
bool lacksCode(cudaError_t status);

// Why CUDA refused something, and what to do where the library has no code for the GPU.
std::string reasonOf(cudaError_t status);

// What to do about a launch that failed: the end of a message, "" where the library has no code for the GPU.
const char* nextStepOf(cudaError_t status);

}  // namespace padfree
