// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/device_objects.h"
#include "engine/engine_abi.h"
#include "engine/tensorrt.h"

namespace padfree::engine {

// A tensor of the plan, as the backend described it.
struct Tensor {
  std::string name;
  PadfreeRows rows;
  std::vector<int64_t> trailing;
  int64_t row_bytes;

  Dims shapeFor(const PadfreeSizes& sizes) const;
};

}  // namespace padfree::engine

// A plan in TensorRT on one GPU, checked against its metadata.
struct PadfreeEngine {
  explicit PadfreeEngine(const PadfreePlan& plan);

  void read(void* destination, const void* source, int64_t bytes);

  padfree::engine::Device device;
  std::unique_ptr<padfree::engine::TensorRtEngine> engine;
  std::vector<padfree::engine::Tensor> inputs, outputs;
  PadfreeSizes most{};
  bool cuda_graphs;

 private:
  void checkOrigin(const PadfreePlan& plan) const;
  void checkTensors(const PadfreePlan& plan) const;

  std::mutex reading_;
  std::unique_ptr<padfree::engine::Stream> reads_;
};
