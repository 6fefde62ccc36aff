// SPDX-License-Identifier: Apache-2.0
// libpadfree_engine.so: what engine_abi.h says, implemented with TensorRT and CUDA's driver.
#include "engine/engine.h"

namespace padfree::engine {
namespace {

std::unique_ptr<Engine> open(const PadfreePlan& plan) {
  return std::make_unique<DeviceEngine>(plan);
}

constexpr PadfreeEngineApi kApi = {kPadfreeEngineAbi, open};

}  // namespace
}  // namespace padfree::engine

extern "C" __attribute__((visibility("default"))) const padfree::PadfreeEngineApi* padfree_engine_api() {
  return &padfree::engine::kApi;
}
