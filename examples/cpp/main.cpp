// SPDX-License-Identifier: Apache-2.0
// Runs a packed plan of padfree's (or one of --interface varseqlen) through TensorRT's C++ API and prints its outputs.
//
//   run_plan model.plan libpadfree.so 101,7,102 101,102      one argument per sequence: its ids
//   run_plan model.plan libpadfree.so --save FOLDER ...      also writes every output as FOLDER/<name>.bin
//   run_plan model.plan libpadfree.so language=3,0 ...       an input with a row for every sequence: its numbers
//
// The names of inputs are those of docs/reference/runtime.md; token types and whatever else a token has are zeros here.
#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

class Logger final : public nvinfer1::ILogger {
  void log(Severity severity, const char* message) noexcept override {
    if (severity <= Severity::kWARNING) std::cerr << message << '\n';
  }
};

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

template <typename T>
T* need(T* made, const std::string& what) {
  if (made == nullptr) throw std::runtime_error(what + " failed; the lines above say why");
  return made;
}

// Memory of the device.
struct Buffer {
  explicit Buffer(size_t size) : bytes(size) { check(cudaMalloc(&data, std::max<size_t>(size, 1)), "cudaMalloc"); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }

  void* data = nullptr;
  size_t bytes;
};

// A ragged batch as packed engines take it: every input by its name.
std::vector<int32_t> inputValues(const std::string& name, const std::vector<std::vector<int32_t>>& batch) {
  std::vector<int32_t> ids, lengths, sums{0};
  size_t longest = 1;
  for (const auto& sequence : batch) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    lengths.push_back(static_cast<int32_t>(sequence.size()));
    sums.push_back(static_cast<int32_t>(ids.size()));
    longest = std::max(longest, sequence.size());
  }
  if (name == "seq_lens") return lengths;
  if (name == "cu_seqlens") return sums;
  if (name == "prefix") return std::vector<int32_t>{-1};           // no sequence continues another
  if (name == "max_seqlen") return std::vector<int32_t>(longest);  // its shape alone is read
  return name == "input_ids" ? ids : std::vector<int32_t>(ids.size());
}

// Numbers between commas; those of a float input by their bits.
std::vector<int32_t> parse(const std::string& text, bool floats = false) {
  std::vector<int32_t> numbers;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const float number = floats ? std::stof(word) : 0.0F;
    int32_t bits = 0;
    std::memcpy(&bits, &number, sizeof(bits));
    numbers.push_back(floats ? bits : std::stoi(word));
  }
  return numbers;
}

size_t sizeOf(nvinfer1::DataType type) {
  return type == nvinfer1::DataType::kINT64                                       ? 8
         : type == nvinfer1::DataType::kHALF || type == nvinfer1::DataType::kBF16 ? 2
         : type == nvinfer1::DataType::kBOOL || type == nvinfer1::DataType::kINT8 ? 1
                                                                                  : 4;
}

void run(const std::string& plan_path, const std::string& library, const std::string& folder,
         const std::vector<std::vector<int32_t>>& batch, const std::map<std::string, std::string>& rows) {
  check(cudaFree(nullptr), "CUDA");  // without a GPU, TensorRT's first call may end the process
  Logger logger;
  const std::unique_ptr<nvinfer1::IRuntime> runtime(need(nvinfer1::createInferRuntime(logger), "createInferRuntime"));
  need(runtime->getPluginRegistry().loadLibrary(library.c_str()), "loading " + library);
  std::ifstream file(plan_path, std::ios::binary);
  const std::vector<char> plan{std::istreambuf_iterator<char>(file), {}};
  if (plan.empty()) throw std::runtime_error(plan_path + " cannot be read");
  const std::unique_ptr<nvinfer1::ICudaEngine> engine(
      need(runtime->deserializeCudaEngine(plan.data(), plan.size()), "deserialising " + plan_path));
  const std::unique_ptr<nvinfer1::IExecutionContext> context(
      need(engine->createExecutionContext(), "creating a context"));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  std::map<std::string, std::unique_ptr<Buffer>> buffers;
  for (const bool inputs : {true, false}) {  // shapes of outputs follow from those of inputs
    for (int32_t i = 0; i < engine->getNbIOTensors(); ++i) {
      const char* const name = engine->getIOTensorName(i);
      if ((engine->getTensorIOMode(name) == nvinfer1::TensorIOMode::kINPUT) != inputs) continue;
      if (inputs) {
        const bool floats = engine->getTensorDataType(name) == nvinfer1::DataType::kFLOAT;
        const auto values = rows.count(name) ? parse(rows.at(name), floats) : inputValues(name, batch);
        nvinfer1::Dims shape = engine->getTensorShape(name);  // [-1], or [-1, N] where a row has N numbers
        shape.d[0] = static_cast<int32_t>(values.size()) / (shape.nbDims > 1 ? shape.d[1] : 1);
        if (!context->setInputShape(name, shape))
          throw std::runtime_error(std::string(name) + " is beyond the profile");
        buffers[name] = std::make_unique<Buffer>(values.size() * sizeof(int32_t));
        check(cudaMemcpy(buffers[name]->data, values.data(), buffers[name]->bytes, cudaMemcpyHostToDevice), name);
      } else {
        const nvinfer1::Dims shape = context->getTensorShape(name);
        size_t count = sizeOf(engine->getTensorDataType(name));
        for (int32_t axis = 0; axis < shape.nbDims; ++axis) count *= static_cast<size_t>(shape.d[axis]);
        buffers[name] = std::make_unique<Buffer>(count);
      }
      context->setTensorAddress(name, buffers[name]->data);
    }
  }
  if (!context->enqueueV3(stream)) throw std::runtime_error("enqueueV3 failed; the lines above say why");
  check(cudaStreamSynchronize(stream), "the run");
  for (const auto& [name, buffer] : buffers) {
    if (engine->getTensorIOMode(name.c_str()) == nvinfer1::TensorIOMode::kINPUT) continue;
    std::vector<char> bytes(buffer->bytes);
    check(cudaMemcpy(bytes.data(), buffer->data, bytes.size(), cudaMemcpyDeviceToHost), name.c_str());
    std::cout << name << " [";
    const nvinfer1::Dims shape = context->getTensorShape(name.c_str());
    for (int32_t axis = 0; axis < shape.nbDims; ++axis) std::cout << (axis ? ", " : "") << shape.d[axis];
    std::cout << "], " << bytes.size() << " bytes\n";
    if (!folder.empty())
      std::ofstream(folder + "/" + name + ".bin", std::ios::binary).write(bytes.data(), buffer->bytes);
  }
  cudaStreamDestroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool saves = words.size() > 3 && words[2] == "--save";
  const size_t first = saves ? 4 : 2;
  if (words.size() <= first)
    return std::cerr << "usage: run_plan PLAN LIBRARY [--save FOLDER] [NAME=NUMBERS]... IDS...\n", 2;
  try {
    std::vector<std::vector<int32_t>> batch;
    std::map<std::string, std::string> rows;
    for (size_t i = first; i < words.size(); ++i) {
      const size_t sign = words[i].find('=');
      if (sign == std::string::npos)
        batch.push_back(parse(words[i]));
      else
        rows[words[i].substr(0, sign)] = words[i].substr(sign + 1);
    }
    run(words[0], words[1], saves ? words[3] : "", batch, rows);
  } catch (const std::exception& error) {
    return std::cerr << "run_plan: " << error.what() << '\n', 1;
  }
  return 0;
}
