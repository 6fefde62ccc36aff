// SPDX-License-Identifier: Apache-2.0
// In place of the launchers and of CUDA, which need nvcc and a GPU: nothing is computed, and there is no GPU.
#include <cuda_runtime_api.h>

#include "attention/launch.h"
#include "embedding/launch.h"
#include "index/launch.h"
#include "layer_norm/launch.h"
#include "linear/choice.h"
#include "linear/launch.h"
#include "linear/measure.h"
#include "pack/launch.h"
#include "pool/launch.h"
#include "rotary/launch.h"
#include "schedule/launch.h"
#include "unpack/launch.h"

cudaError_t cudaGetDevice(int*) {
  return cudaErrorNoDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int) {
  return cudaErrorNoDevice;
}
const char* cudaGetErrorString(cudaError_t) {
  return "no GPU";
}

namespace padfree {

cudaError_t launchAttention(const AttentionParams&, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchEmbedding(const EmbeddingParams&, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchIndex(const IndexParams&, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchLayerNorm(const LayerNormParams&, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchLinear(const LinearParams&, LinearChoice, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchPack(const PackParams&, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchPool(const PoolParams&, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchRotary(const RotaryParams&, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchSchedule(const ScheduleParams&, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t launchUnpack(const UnpackParams&, cudaStream_t) {
  return cudaSuccess;
}
bool isLinearChoice(LinearChoice choice) {
  return choice >= 0 && choice < 64;
}
cudaError_t measureLinear(const LinearParams&, int, int, std::vector<LinearRange>&) {
  return cudaErrorNoDevice;
}

}  // namespace padfree
