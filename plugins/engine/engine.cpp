// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fstream>
#include <sstream>

#include "engine/failure.h"
#include "engine/sizes.h"

namespace padfree::engine {
namespace {

struct Type {
  nvinfer1::DataType tensorrt;
  int64_t bytes;
};

// Indexed by PadfreeType.
constexpr Type kTypes[] = {{nvinfer1::DataType::kFLOAT, 4}, {nvinfer1::DataType::kHALF, 2},
                           {nvinfer1::DataType::kBF16, 2},  {nvinfer1::DataType::kINT32, 4},
                           {nvinfer1::DataType::kINT64, 8}, {nvinfer1::DataType::kBOOL, 1}};

std::vector<Tensor> copyOf(const PadfreeTensor* tensors, int32_t count) {
  std::vector<Tensor> copied;
  for (int32_t i = 0; i < count; ++i) {
    const PadfreeTensor& tensor = tensors[i];
    Tensor copy{tensor.name, tensor.rows, {tensor.trailing, tensor.trailing + tensor.trailing_count}, 0};
    copy.row_bytes = kTypes[tensor.type].bytes;
    for (const int64_t size : copy.trailing) copy.row_bytes *= size;
    copied.push_back(std::move(copy));
  }
  return copied;
}

std::string readPlan(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string content(file ? static_cast<size_t>(file.tellg()) : 0, '\0');
  file.seekg(0);
  if (!file.read(content.data(), static_cast<std::streamsize>(content.size())) || content.empty()) {
    throw Failure(path + " cannot be read; copy the plan that padfree build wrote into the version's folder");
  }
  return content;
}

}  // namespace

Dims Tensor::shapeFor(const PadfreeSizes& sizes) const {
  Dims shape = {rowsOf(sizes, rows)};
  shape.insert(shape.end(), trailing.begin(), trailing.end());
  return shape;
}

}  // namespace padfree::engine

// The order matters: TensorRT may end the process if CUDA does not work, so CUDA is tried first.
PadfreeEngine::PadfreeEngine(const PadfreePlan& plan) : device(plan.device), cuda_graphs(plan.cuda_graphs) {
  using namespace padfree::engine;
  device.makeCurrent();
  checkOrigin(plan);
  const TensorRtLibrary library(plan.tensorrt);
  if (plan.has_plugins) loadPlugins();
  engine = std::make_unique<TensorRtEngine>(library, readPlan(plan.path), plan.path);
  checkTensors(plan);
  inputs = copyOf(plan.inputs, plan.input_count);
  outputs = copyOf(plan.outputs, plan.output_count);
  most = {plan.max_tokens, plan.max_sequences, plan.max_slots};
  reads_ = std::make_unique<Stream>();
}

void PadfreeEngine::checkOrigin(const PadfreePlan& plan) const {
  using padfree::engine::Failure;
  const std::string rebuild = "build the plan again on this machine with padfree build";
  const std::string gpu = "GPU " + std::to_string(device.number()) + " (" + device.name() + ")";
  if (device.computeCapability() != plan.compute_capability) {
    throw Failure("the plan was built for compute capability " + std::string(plan.compute_capability) + " (" +
                  plan.gpu_name + "), " + gpu + " has " + device.computeCapability() + "; " + rebuild);
  }
  if (device.name() != plan.gpu_name && !plan.allow_other_gpu) {
    throw Failure("the plan was built on " + std::string(plan.gpu_name) + ", " + gpu + " is another; " + rebuild +
                  ", or set padfree_allow_other_gpu to true in config.pbtxt to run it with kernels chosen for the "
                  "other GPU");
  }
}

void PadfreeEngine::checkTensors(const PadfreePlan& plan) const {
  using namespace padfree::engine;
  const auto require = [&](const PadfreeTensor& tensor, bool is_there) {
    if (is_there && engine->type(tensor.name) == kTypes[tensor.type].tensorrt) return;
    throw Failure("the engine has no tensor '" + std::string(tensor.name) +
                  "' as its metadata describe it; they belong to another plan: copy both files of one build");
  };
  for (int32_t i = 0; i < plan.input_count; ++i) require(plan.inputs[i], engine->isInput(plan.inputs[i].name));
  for (int32_t i = 0; i < plan.output_count; ++i) require(plan.outputs[i], engine->isOutput(plan.outputs[i].name));
  if (engine->tensorCount() != plan.input_count + plan.output_count) {
    throw Failure("the engine has " + std::to_string(engine->tensorCount()) + " tensors, its metadata " +
                  std::to_string(plan.input_count + plan.output_count) +
                  "; they belong to another plan: copy both files of one build");
  }
}

void PadfreeEngine::read(void* destination, const void* source, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(reading_);
  device.makeCurrent();
  reads_->copy(destination, source, static_cast<size_t>(bytes));
  reads_->synchronize();
}
