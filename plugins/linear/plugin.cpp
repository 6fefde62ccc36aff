// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "common/launch.h"
#include "common/operator.h"
#include "common/text.h"
#include "linear/tune.h"

namespace padfree {
namespace {

constexpr int kSizeMultiple = 8;  // of K and N
constexpr const char* kNextStep = "; build with --linear tensorrt";

Activation activationOf(const std::string& name) {
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  return name == "silu" ? Activation::kSilu : Activation::kNone;
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::invalid_argument(text(what, ": ", cudaGetErrorString(status), kNextStep));
}

// Throws unless the current device is one that the kernel is compiled for.
void checkArchitecture(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "the GPU cannot be asked for its architecture");
  if (properties.major == 9 && properties.minor == 0) return;
  throw std::invalid_argument(text("the GPU ", properties.name, " has compute capability ", properties.major, '.',
                                   properties.minor, "; allowed: 9.0", kNextStep));
}

// The measured field: tokens and choice of each range in turn.
std::vector<int32_t> fieldOf(const std::vector<LinearRange>& table) {
  std::vector<int32_t> field;
  for (const LinearRange& range : table) field.insert(field.end(), {range.tokens, range.choice});
  return field;
}

std::vector<LinearRange> tableOf(const std::vector<int32_t>& field) {
  if (field.size() % 2 != 0) {
    throw std::invalid_argument(
        text("the engine holds ", field.size(), " numbers for its choices; allowed: pairs; build the engine again"));
  }
  std::vector<LinearRange> table;
  for (size_t i = 0; i < field.size(); i += 2) {
    const LinearRange range{field[i], field[i + 1]};
    if (range.tokens < 1 || !isLinearChoice(range.choice) || (i > 0 && range.tokens <= table.back().tokens)) {
      throw std::invalid_argument(text("the engine chooses ", range.choice, " for ", range.tokens,
                                       " tokens, which this library does not know; build the engine again"));
    }
    table.push_back(range);
  }
  return table;
}

// One measurement for all equal products in this process, which are most of a model's.
std::vector<LinearRange> measureOnce(int device, const LinearParams& params, int min_tokens, int max_tokens) {
  using Key = std::tuple<int, int, int, Activation, bool, bool, DataType, int, int>;
  static std::mutex mutex;
  static std::map<Key, std::vector<LinearRange>> known;
  const Key key{
      device,      params.K,   params.N,  params.activation, params.bias != nullptr, params.residual != nullptr,
      params.type, min_tokens, max_tokens};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  std::vector<LinearRange> table;
  check(measureLinear(params, min_tokens, max_tokens, table), "the kernels cannot be measured on this GPU");
  return known.emplace(key, table).first->second;
}

class Linear final : public Operator {
 public:
  explicit Linear(const Attributes& attributes)
      : x_(addInput("x", TensorKind::kHalf, "[T,K]")),
        weight_(addInput("weight", TensorKind::kHalf, "[K,N]")),
        bias_(addInput("bias", TensorKind::kHalf, "[N]", attributes.flag("has_bias"))),
        residual_(addInput("residual", TensorKind::kHalf, "[T,N]", attributes.flag("has_residual"))),
        y_(addOutput("y", TensorKind::kHalf, "[T,N]")),
        activation_(activationOf(attributes.choice("activation"))),
        table_(tableOf(attributes.measured("choices"))) {}

  void checkSizes(const Sizes& sizes) const override {
    for (const char* letter : {"K", "N"}) {
      const int64_t size = sizes.get(letter);
      if (size < 0 || (size > 0 && size % kSizeMultiple == 0)) continue;
      throw std::invalid_argument(
          text("the weight has ", letter, " = ", size, "; allowed: multiples of ", kSizeMultiple, kNextStep));
    }
  }

  std::vector<int32_t> measure(const ProfiledTensors& tensors) const override {
    int device = 0;
    check(cudaGetDevice(&device), "there is no GPU to measure on");
    checkArchitecture(device);
    LinearParams params{};
    params.K = tensors.maximum(weight_, 0);
    params.N = tensors.maximum(weight_, 1);
    params.activation = activation_;
    params.type = tensors.type(x_);
    params.bias = bias_ == kAbsent ? nullptr : this;  // only whether they are there is looked at
    params.residual = residual_ == kAbsent ? nullptr : this;
    const int max_tokens = tensors.maximum(x_, 0);
    if (max_tokens < 1) return {};
    return fieldOf(measureOnce(device, params, std::max(tensors.minimum(x_, 0), 1), max_tokens));
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    LinearParams params{};
    params.x = tensors.input(x_);
    params.weight = tensors.input(weight_);
    params.bias = tensors.input(bias_);
    params.residual = tensors.input(residual_);
    params.y = tensors.output(y_);
    params.T = tensors.size(x_, 0);
    params.K = tensors.size(x_, 1);
    params.N = tensors.size(weight_, 1);
    params.activation = activation_;
    params.type = tensors.type(x_);
    for (const void* data : {params.x, params.weight, params.bias, params.residual, (const void*)params.y}) {
      if (!isAligned16(data)) return cudaErrorMisalignedAddress;
    }
    return launchLinear(params, choose(params.T), stream);
  }

 private:
  LinearChoice choose(int tokens) const {
    const auto range = std::lower_bound(table_.begin(), table_.end(), tokens,
                                        [](const LinearRange& item, int wanted) { return item.tokens < wanted; });
    return range == table_.end() ? kLinearAuto : range->choice;
  }

  const int x_, weight_, bias_, residual_, y_;
  const Activation activation_;
  const std::vector<LinearRange> table_;  // ascending tokens
};

}  // namespace

OperatorInfo linearOperator() {
  return {"PadfreeLinear",
          {choiceField("activation", {"none", "gelu", "gelu_tanh", "relu", "silu"}), flagField("has_bias"),
           flagField("has_residual"), measuredField("choices")},
          makeOperator<Linear>};
}

}  // namespace padfree
