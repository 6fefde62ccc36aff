// SPDX-License-Identifier: Apache-2.0
// Instead of the launchers and of CUDA's runtime, for plugins without device code: nothing is computed, every launch
// is refused, and no GPU is seen. For machines without a GPU, where TensorRT's registry takes the plugins and models
// are rewritten, and for the sanitizers (tests/sanitizers).
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
#include "post_norm/launch.h"
#include "qk_norm_rotary/launch.h"
#include "rotary/launch.h"
#include "schedule/launch.h"
#include "token_rows/launch.h"
#include "unpack/launch.h"

namespace padfree {
namespace {

constexpr cudaError_t kRefusal = cudaErrorNoKernelImageForDevice;

}  // namespace

cudaError_t launchAttention(const AttentionParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchEmbedding(const EmbeddingParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchIndex(const IndexParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchLayerNorm(const LayerNormParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t linearDevice(LinearDevice&) {
  return kRefusal;
}
cudaError_t launchLinear(const LinearParams&, LinearChoice, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchPack(const PackParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchPool(const PoolParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchPostNorm(const PostNormParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchQkNormRotary(const QkNormRotaryParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchRotary(const RotaryParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchSchedule(const ScheduleParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchTokenRows(const TokenRowsParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t launchUnpack(const UnpackParams&, cudaStream_t) {
  return kRefusal;
}
cudaError_t measureLinear(const LinearParams&, int, int, std::vector<LinearRange>&) {
  return kRefusal;
}

}  // namespace padfree

extern "C" {

cudaError_t cudaGetDevice(int*) {
  return cudaErrorNoKernelImageForDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int) {
  return cudaErrorNoKernelImageForDevice;
}
const char* cudaGetErrorString(cudaError_t) {
  return "the library was built without device code";
}

}  // extern "C"
