// SPDX-License-Identifier: Apache-2.0
// The shortest way: `vectors model.plan libpadfree.so 101,7,102 101,102` prints the first numbers of every text's
// vector, of a plan that `padfree build FOLDER` made. main.cpp is for any plan, with all that can go wrong.
#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

struct Logger final : nvinfer1::ILogger {
  void log(Severity severity, const char* message) noexcept override {
    if (severity <= Severity::kWARNING) std::fprintf(stderr, "%s\n", message);
  }
};

template <typename T>
T* shared(size_t count, const std::vector<T>& values = {}) {  // memory of CPU and GPU: no copies to write down
  void* data = nullptr;
  if (cudaMallocManaged(&data, sizeof(T) * count) != cudaSuccess) std::exit(1);
  return std::copy(values.begin(), values.end(), static_cast<T*>(data)), static_cast<T*>(data);
}

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "usage: vectors PLAN LIBRARY IDS...\n"), 2;
  std::map<std::string, std::vector<int32_t>> inputs;  // tokens of all texts one after the other, and their lengths
  for (int i = 3; i < argc; ++i) {
    std::istringstream words(argv[i]);
    inputs["seq_lens"].push_back(0);
    for (std::string word; std::getline(words, word, ','); ++inputs["seq_lens"].back())
      inputs["input_ids"].push_back(std::stoi(word));
  }
  inputs["token_type_ids"].resize(inputs["input_ids"].size());
  Logger logger;
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> plan{std::istreambuf_iterator<char>(file), {}};
  const std::unique_ptr<nvinfer1::IRuntime> runtime(nvinfer1::createInferRuntime(logger));
  runtime->getPluginRegistry().loadLibrary(argv[2]);
  const std::unique_ptr<nvinfer1::ICudaEngine> engine(runtime->deserializeCudaEngine(plan.data(), plan.size()));
  if (!engine) return 1;  // the log says why
  const std::unique_ptr<nvinfer1::IExecutionContext> context(engine->createExecutionContext());
  for (const auto& [name, values] : inputs) {
    if (engine->getTensorIOMode(name.c_str()) != nvinfer1::TensorIOMode::kINPUT) continue;  // a model without types
    context->setInputShape(name.c_str(), {1, {static_cast<int32_t>(values.size())}});
    context->setTensorAddress(name.c_str(), shared(values.size(), values));
  }
  const size_t width = engine->getTensorShape("sentence_embedding").d[1], texts = inputs["seq_lens"].size();
  auto* const vectors = shared<float>(texts * width);
  context->setTensorAddress("sentence_embedding", vectors);
  if (!context->enqueueV3(nullptr) || cudaDeviceSynchronize() != cudaSuccess) return 1;
  for (auto* at = vectors; at < vectors + texts * width; at += width) std::printf("%g %g %g\n", at[0], at[1], at[2]);
}
