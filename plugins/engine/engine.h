// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>

#include "engine/device_objects.h"
#include "engine/engine_abi.h"
#include "engine/tensorrt.h"

namespace padfree::engine {

// A plan in TensorRT on one GPU, checked against its metadata.
class DeviceEngine final : public Engine {
 public:
  explicit DeviceEngine(const PadfreePlan& plan);
  ~DeviceEngine() override;

  std::unique_ptr<Lane> openLane() override;
  void read(void* destination, const void* source, int64_t bytes) const override;

  const PadfreePlan plan;
  const Device device;
  std::unique_ptr<TensorRtEngine> engine;

 private:
  void checkOrigin() const;
  void checkTensors() const;

  mutable std::mutex reading_;
  std::unique_ptr<Stream> reads_;
};

}  // namespace padfree::engine
