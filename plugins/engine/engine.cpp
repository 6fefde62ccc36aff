// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fstream>
#include <stdexcept>

#include "common/text.h"
#include "engine/lane.h"

namespace padfree::engine {
namespace {

// Indexed by PadfreeType.
constexpr nvinfer1::DataType kTypes[] = {nvinfer1::DataType::kFLOAT, nvinfer1::DataType::kHALF,
                                         nvinfer1::DataType::kBF16,  nvinfer1::DataType::kINT32,
                                         nvinfer1::DataType::kINT64, nvinfer1::DataType::kBOOL};

std::string readPlan(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string content(file ? static_cast<size_t>(file.tellg()) : 0, '\0');
  file.seekg(0);
  if (!file.read(content.data(), static_cast<std::streamsize>(content.size())) || content.empty()) {
    throwError(path + " cannot be read; copy the plan that padfree build wrote into the version's folder");
  }
  return content;
}

}  // namespace

// The order matters: TensorRT may end the process if CUDA does not work, so CUDA is tried first.
DeviceEngine::DeviceEngine(const PadfreePlan& wanted) : plan(wanted), device(plan.device) {
  device.makeCurrent();
  checkOrigin();
  const TensorRtLibrary library(plan.tensorrt);
  if (plan.has_plugins) loadPlugins();
  engine = std::make_unique<TensorRtEngine>(library, readPlan(plan.path), plan.path);
  checkTensors();
  reads_ = std::make_unique<Stream>();
}

DeviceEngine::~DeviceEngine() {
  try {
    device.makeCurrent();
  } catch (const std::exception&) {  // what is destroyed now is lost anyway
  }
}

void DeviceEngine::checkOrigin() const {
  const std::string rebuild = "build the plan again on this machine with padfree build";
  const std::string gpu = text("GPU ", device.number(), " (", device.name(), ")");
  if (device.computeCapability() != plan.compute_capability) {
    throwError("the plan was built for compute capability ", plan.compute_capability, " (", plan.gpu_name, "), ", gpu,
               " has ", device.computeCapability(), "; ", rebuild);
  }
  if (device.name() != plan.gpu_name && !plan.allow_other_gpu) {
    throwError("the plan was built on ", plan.gpu_name, ", ", gpu, " is another; ", rebuild,
               ", or set padfree_allow_other_gpu to true in config.pbtxt to run it with kernels "
               "chosen for the other GPU");
  }
}

void DeviceEngine::checkTensors() const {
  const auto require = [&](const PadfreeTensor& tensor, nvinfer1::TensorIOMode mode) {
    const char* name = tensor.name.c_str();
    if (engine->mode(name) == mode && engine->type(name) == kTypes[tensor.type]) return;
    throwError("the engine has no tensor '", name,
               "' as its metadata describe it; they belong to another plan: copy both files of one "
               "build");
  };
  for (const PadfreeTensor& input : plan.inputs) require(input, nvinfer1::TensorIOMode::kINPUT);
  for (const PadfreeTensor& output : plan.outputs) require(output, nvinfer1::TensorIOMode::kOUTPUT);
  const size_t described = plan.inputs.size() + plan.outputs.size();
  if (engine->tensorCount() != static_cast<int32_t>(described)) {
    throwError("the engine has ", engine->tensorCount(), " tensors, its metadata ", described,
               "; they belong to another plan: copy both files of one build");
  }
}

std::unique_ptr<Lane> DeviceEngine::openLane() {
  device.makeCurrent();
  return std::make_unique<DeviceLane>(*this);
}

void DeviceEngine::read(void* destination, const void* source, int64_t bytes) const {
  const std::lock_guard<std::mutex> lock(reading_);
  device.makeCurrent();
  reads_->copy(destination, source, static_cast<size_t>(bytes));
  reads_->synchronize();
}

}  // namespace padfree::engine
