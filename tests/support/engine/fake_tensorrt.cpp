// SPDX-License-Identifier: Apache-2.0
// Stands in for libnvinfer.so.10 or .11 (STAND_IN_MAJOR): objects whose tables of virtual functions have what
// plugins/engine calls where that version has it. For 11.x the places come from the headers, for 10.x from those of
// 10.6.0 (include/NvInferImpl.h there); any other function ends the process.
//
// A plan is text: "NAME in|out T|B|S TYPE SIZE..." a tensor, TYPE as in nvinfer1::DataType, SIZE the trailing sizes.
// Outputs are those of tests/support/fake_engine.cpp, or -1 in a run whose filler is not all zeros.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "NvInferRuntime.h"
#include "engine/fake_cuda.h"

namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;

struct Tensor {
  std::string name;
  bool is_input;
  char rows;
  DataType type;
  std::vector<int64_t> trailing;

  int64_t width() const {
    int64_t product = 1;
    for (const int64_t size : trailing) product *= size;
    return product;
  }
};

// An object of TensorRT's: its own table (two destructors, as far as is called), and its implementation.
struct Object {
  void** table;
  struct Implementation* implementation;
};
struct Implementation {
  void** table;
  std::vector<Tensor> tensors;
  std::map<std::string, Dims> shapes;
  std::map<std::string, void*> addresses;
  char* scratch = nullptr;
  size_t scratch_bytes = 0;
};

int live_objects = 0;

[[noreturn]] void unexpected() {
  std::fprintf(stderr, "a function of TensorRT was called that stands elsewhere\n");
  std::abort();
}

void destroy(Object* object) {
  delete object->implementation;
  delete object;
  --live_objects;
}

constexpr size_t kTableSize = 64;
using Table = std::array<void*, kTableSize>;

Table emptyTable() {
  Table table;
  table.fill(reinterpret_cast<void*>(&unexpected));
  return table;
}

Object* newObject(Table& table, std::vector<Tensor> tensors) {
  static Table own = [] {
    Table made = emptyTable();
    made[1] = reinterpret_cast<void*>(&destroy);  // the deleting destructor
    return made;
  }();
  ++live_objects;
  return new Object{own.data(), new Implementation{table.data(), std::move(tensors), {}, {}}};
}

// Where a virtual function stands: the address of a virtual member function is 1 + its offset in the table.
template <class Function>
[[maybe_unused]] size_t placeOf(Function function) {
  uintptr_t words[2];
  static_assert(sizeof(function) == sizeof(words));
  std::memcpy(words, &function, sizeof(words));
  return (words[0] - 1) / sizeof(void*);
}

#if STAND_IN_MAJOR == 10
#define PLACE(table, function, ten) ten
#else
#define PLACE(table, function, ten) placeOf(&nvinfer1::apiv::table::function)
#endif

const Tensor* find(const Implementation* self, const char* name) {
  for (const Tensor& tensor : self->tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

int64_t sizeOf(const Implementation* self, char rows) {
  for (const Tensor& tensor : self->tensors) {
    if (tensor.is_input && tensor.rows == rows) return self->shapes.at(tensor.name).d[0];
  }
  return 0;
}

int32_t tensorCount(const Implementation* self) {
  return static_cast<int32_t>(self->tensors.size());
}
nvinfer1::TensorIOMode modeOf(const Implementation* self, const char* name) {
  const Tensor* tensor = find(self, name);
  if (tensor == nullptr) return nvinfer1::TensorIOMode::kNONE;
  return tensor->is_input ? nvinfer1::TensorIOMode::kINPUT : nvinfer1::TensorIOMode::kOUTPUT;
}
DataType typeOf(const Implementation* self, const char* name) {
  return find(self, name)->type;
}

bool setShape(Implementation* self, const char* name, const Dims& dims) {
  if (dims.d[0] < 1 || dims.d[0] > 4096) return false;
  self->shapes[name] = dims;
  return true;
}
Dims shapeOf(const Implementation* self, const char* name) {
  const Tensor* tensor = find(self, name);
  Dims dims{static_cast<int32_t>(1 + tensor->trailing.size()), {sizeOf(self, tensor->rows)}};
  for (size_t i = 0; i < tensor->trailing.size(); ++i) dims.d[1 + i] = tensor->trailing[i];
  return dims;
}
bool setAddress(Implementation* self, const char* name, void* memory) {
  self->addresses[name] = memory;
  return reinterpret_cast<uintptr_t>(memory) % 256 == 0;
}
int32_t inferShapes(const Implementation* self, int32_t, const char** names) {
  for (const Tensor& tensor : self->tensors) {
    if (!tensor.is_input || self->shapes.count(tensor.name) != 0) continue;
    *names = tensor.name.c_str();
    return 1;
  }
  return 0;
}
size_t scratchBytes(const Implementation* self) {
  return 64 * static_cast<size_t>(sizeOf(self, 'T'));
}
void setScratch(Implementation* self, void* memory, int64_t bytes) {
  self->scratch = static_cast<char*>(memory);
  self->scratch_bytes = static_cast<size_t>(bytes);
}

int64_t load(const Implementation& self, const Tensor& tensor, int64_t at) {
  const void* memory = self.addresses.at(tensor.name);
  return tensor.type == DataType::kFLOAT ? static_cast<int64_t>(static_cast<const float*>(memory)[at])
                                         : static_cast<const int32_t*>(memory)[at];
}

// Inputs are numbered from 1 among those with rows of one kind; factor(k): of number k of a row.
template <class Factor>
int64_t sumOfRow(const Implementation& self, char rows, int64_t row, Factor&& factor) {
  int64_t sum = 0, number = 0;
  for (const Tensor& tensor : self.tensors) {
    if (!tensor.is_input || tensor.rows != rows || tensor.name == "seq_lens") continue;
    ++number;
    for (int64_t k = 0; k < tensor.width(); ++k) {
      sum += number * factor(k) * load(self, tensor, row * tensor.width() + k);
    }
  }
  return sum;
}

int64_t ofToken(const Implementation& self, int64_t token) {
  return sumOfRow(self, 'T', token, [](int64_t) { return 1; });
}

float wrap(int64_t value) {
  constexpr int64_t kModulus = 2039;
  return static_cast<float>((value % kModulus + kModulus) % kModulus);
}

void compute(const Implementation& self) {
  const auto* seq_lens = static_cast<const int32_t*>(self.addresses.at("seq_lens"));
  std::memset(self.scratch, 0xab, self.scratch_bytes);
  const int64_t sequences = sizeOf(&self, 'B'), tokens = sizeOf(&self, 'T');
  int64_t used = 0;
  for (int64_t b = 0; b < sequences; ++b) used += seq_lens[b];
  bool is_clean = used <= tokens;
  for (int64_t t = used; t < tokens; ++t) is_clean = is_clean && ofToken(self, t) == 0;
  for (const Tensor& tensor : self.tensors) {
    if (tensor.is_input) continue;
    auto* out = static_cast<float*>(self.addresses.at(tensor.name));
    const int64_t width = tensor.width();
    int64_t token = 0;
    for (int64_t b = 0; b < sequences; ++b) {
      int64_t pooled = sumOfRow(self, 'B', b, [](int64_t k) { return 1000 * (k + 1); });
      for (int64_t p = 0; p < seq_lens[b]; ++p, ++token) {
        const int64_t sum = ofToken(self, token), value = 3 * seq_lens[b] + 7 * p + sum;
        pooled += (p + 1) * sum;
        for (int64_t e = 0; tensor.rows == 'T' && e < width; ++e) {
          out[token * width + e] = is_clean ? wrap(e + value) : -1;
        }
      }
      for (int64_t e = 0; tensor.rows == 'B' && e < width; ++e) out[b * width + e] = is_clean ? wrap(e + pooled) : -1;
    }
  }
}

bool enqueue(const Implementation* self, void* stream) {
  fakeCudaEnqueue(stream, [copy = *self] { compute(copy); });
  return true;
}

Object* newContext(const Implementation* engine, nvinfer1::ExecutionContextAllocationStrategy strategy) {
  if (strategy != nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED) return nullptr;
  static Table table = [] {
    Table made = emptyTable();
    made[PLACE(VExecutionContext, setInputShape, 21)] = reinterpret_cast<void*>(&setShape);
    made[PLACE(VExecutionContext, getTensorShape, 22)] = reinterpret_cast<void*>(&shapeOf);
    made[PLACE(VExecutionContext, setTensorAddress, 24)] = reinterpret_cast<void*>(&setAddress);
    made[PLACE(VExecutionContext, inferShapes, 28)] = reinterpret_cast<void*>(&inferShapes);
    made[PLACE(VExecutionContext, enqueueV3, 37)] = reinterpret_cast<void*>(&enqueue);
    made[PLACE(VExecutionContext, updateDeviceMemorySizeForShapes, 48)] = reinterpret_cast<void*>(&scratchBytes);
    made[PLACE(VExecutionContext, setDeviceMemoryV2, 49)] = reinterpret_cast<void*>(&setScratch);
    return made;
  }();
  return newObject(table, engine->tensors);
}

Object* deserialize(Implementation*, const void* blob, size_t size) {
  static Table table = [] {
    Table made = emptyTable();
    made[PLACE(VCudaEngine, createExecutionContext, 5)] = reinterpret_cast<void*>(&newContext);
    made[PLACE(VCudaEngine, getTensorDataType, 20)] = reinterpret_cast<void*>(&typeOf);
    made[PLACE(VCudaEngine, getTensorIOMode, 23)] = reinterpret_cast<void*>(&modeOf);
    made[PLACE(VCudaEngine, getNbIOTensors, 30)] = reinterpret_cast<void*>(&tensorCount);
    return made;
  }();
  std::istringstream lines(std::string(static_cast<const char*>(blob), size));
  std::vector<Tensor> tensors;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Tensor tensor;
    std::string mode;
    int type = 0;
    if (!(words >> tensor.name >> mode >> tensor.rows >> type)) return nullptr;
    tensor.is_input = mode == "in";
    tensor.type = static_cast<DataType>(type);
    for (int64_t trailing = 0; words >> trailing;) tensor.trailing.push_back(trailing);
    tensors.push_back(std::move(tensor));
  }
  return tensors.empty() ? nullptr : newObject(table, std::move(tensors));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int32_t getInferLibVersion() {
  return STAND_IN_MAJOR == 10 ? 100600 : 110201;
}

void* createInferRuntime_INTERNAL(void*, int32_t version) {
  if (version != getInferLibVersion()) return nullptr;
  static Table table = [] {
    Table made = emptyTable();
    made[3] = reinterpret_cast<void*>(&deserialize);  // in all versions
    return made;
  }();
  return newObject(table, {});
}

int standInLiveObjects() {
  return live_objects;
}

}  // extern "C"
#pragma GCC visibility pop
