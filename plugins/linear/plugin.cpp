// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <stdexcept>

#include "linear/measure.h"
#include "linear/tables.h"
#include "linear/tiling.h"
#include "shell/device_code.h"
#include "shell/operator.h"
#include "shell/result_types.h"
#include "shell/schemas.h"
#include "shell/text.h"

namespace padfree {
namespace {

constexpr int kSizeMultiple = 8, kByteSizeMultiple = 16;  // of K and N
constexpr int kMinVersion = 80;                           // compute capability, without the point
constexpr int64_t kMaxNormedWidth = kMaxMomentGroups * kMomentFeatures;
constexpr const char* kNextStep = "; build with --linear tensorrt";
constexpr const char* kByteNextStep = "; keep this linear layer in fp16 (--keep), or build with --precision fp16";

Activation activationOf(const std::string& name) {
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  if (name == "silu") return Activation::kSilu;
  return name == "sigmoid" ? Activation::kSigmoid : Activation::kNone;
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::invalid_argument(text(what, ": ", reasonOf(status), kNextStep));
}

enum class OperandType { kHalf, kE4m3, kInt8 };

// Throws where no kernel runs.
void checkGpu(OperandType type) {
  const int version = type == OperandType::kE4m3 ? kMinE4m3Version : kMinVersion;
  checkCapability(version, type == OperandType::kHalf ? kNextStep : kByteNextStep);
}

// The measured field: tokens and choice of each range, alternating.
std::vector<int32_t> fieldOf(const LinearTable& table) {
  std::vector<int32_t> field;
  for (const LinearRange& range : table) field.insert(field.end(), {range.tokens, range.choice});
  return field;
}

LinearTable tableOf(const std::vector<int32_t>& field) {
  if (field.size() % 2 != 0) {
    throw std::invalid_argument(
        text("the engine holds ", field.size(), " numbers for its choices; allowed: pairs; build the engine again"));
  }
  LinearTable table;
  for (size_t i = 0; i < field.size(); i += 2) table.push_back({field[i], field[i + 1]});
  if (const LinearRange* const range = findUnknown(table)) {
    throw std::invalid_argument(text("the engine chooses ", range->choice, " for ", range->tokens,
                                     " tokens, which this library does not know; build the engine again"));
  }
  return table;
}

// PadfreeLinear, and PadfreeLinearFp8 and PadfreeLinearInt8, whose operands have a byte.
class Linear : public Operator {
 public:
  Linear(const OperatorSchema& schema, const Attributes& attributes, OperandType type = OperandType::kHalf)
      : Operator(schema, attributes),
        x_(input("x")),
        weight_(input("weight")),
        scale_(input("scale")),
        bias_(input("bias")),
        residual_(input("residual")),
        x_moments_(input("x_moments")),
        residual_moments_(input("residual_moments")),
        residual_scale_(input("residual_scale")),
        positions_(input("positions")),
        frequencies_(input("frequencies")),
        head_scale_(input("head_scale")),
        y_(output("y")),
        y_e4m3_(output("y_e4m3")),
        y_int8_(output("y_int8")),
        y_factors_(input("y_factors")),
        moments_(output("moments")),
        x_epsilon_(attributes.real("x_epsilon")),
        residual_epsilon_(attributes.real("residual_epsilon")),
        y_scale_(type == OperandType::kE4m3 ? attributes.real("y_scale") : 1.f),
        type_(type),
        gated_(attributes.flag("gated")),
        rms_(attributes.flag("rms")),
        rotary_features_(attributes.integer("rotary_features")),
        activation_(activationOf(attributes.choice("activation"))),
        table_(type == OperandType::kInt8 ? LinearTable{} : tableOf(attributes.measured("choices"))) {}

  void checkSizes(const Sizes& sizes) const override {
    const int multiple = hasBytes() ? kByteSizeMultiple : kSizeMultiple;
    const int gated_multiple = kPairBlock * (hasBytes() ? 2 : 1);
    for (const char* letter : {"K", "N"}) {
      const int64_t size = sizes.get(letter);
      if (size < 0 || (size > 0 && size % multiple == 0)) continue;
      throw std::invalid_argument(
          text("the weight has ", letter, " = ", size, "; allowed: multiples of ", multiple, nextStep()));
    }
    if (gated_ && sizes.get("N") % gated_multiple > 0) {
      throw std::invalid_argument(
          text("the gated weight has N = ", sizes.get("N"), "; allowed: multiples of ", gated_multiple, nextStep()));
    }
    if (sizes.get("N") >= 0 && rotary_features_ > sizes.get("N")) {
      throw std::invalid_argument(text("rotary_features is ", rotary_features_, " with N = ", sizes.get("N"),
                                       "; allowed: up to N; rewrite the model again"));
    }
    if (head_scale_ != kAbsent && rotary_features_ % kNormedHead != 0) {
      throw std::invalid_argument(text("rotary_features is ", rotary_features_,
                                       " with norms_heads; allowed: multiples of ", kNormedHead,
                                       "; rewrite the model again"));
    }
    if (sizes.get("N") > 0) checkTokens(sizes.get("T"), sizes.get("N"));
    checkGroups(x_moments_, "K", sizes.get("K"), kMaxNormedWidth);
    checkGroups(residual_moments_, "N", sizes.get("N"), kMaxNormedWidth);
    checkGroups(moments_, "N", sizes.get("N"), kMaxGridX);
  }

  std::vector<int32_t> measure(const ProfiledTensors& tensors) const override {
    int device = 0;
    check(cudaGetDevice(&device), "there is no GPU to measure on");
    checkGpu(type_);
    if (type_ == OperandType::kInt8) return {};  // the cost model chooses between its few tiles
    static constexpr float kPresent[1] = {};     // only whether pointers are null is looked at
    const auto present = [&](int index) { return index == kAbsent ? nullptr : kPresent; };
    LinearParams params{};
    params.K = tensors.maximum(weight_, hasBytes() ? 1 : 0);
    params.N = tensors.maximum(weight_, hasBytes() ? 0 : 1);
    setAttributes(params);
    params.type = tensors.type(hasBytes() ? bias_ : x_);
    params.scale = present(scale_);
    params.y = y_ == kAbsent ? nullptr : const_cast<float*>(kPresent);
    params.y_e4m3 = y_e4m3_ == kAbsent ? nullptr : const_cast<float*>(kPresent);
    params.bias = present(bias_);
    params.residual = present(residual_);
    params.x_moments = present(x_moments_);
    params.residual_moments = present(residual_moments_);
    params.residual_scale = present(residual_scale_);
    params.head_scale = present(head_scale_);
    params.moments = moments_ == kAbsent ? nullptr : const_cast<float*>(kPresent);
    const int max_tokens = tensors.maximum(x_, 0);
    if (max_tokens < 1) return {};
    const int min_tokens = std::max(tensors.minimum(x_, 0), 1);
    return fieldOf(linearTables().get(device, tableKeyOf(params, min_tokens, max_tokens), [&] {
      LinearTable table;
      check(measureLinear(params, min_tokens, max_tokens, table), "the kernels cannot be measured on this GPU");
      return table;
    }));
  }

  int64_t scratchBytes() const override {
    LinearDevice device{};
    return linearDevice(device) == cudaSuccess && !device.is_hopper ? kLinearScratchBytes : 0;
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    LinearParams params{};
    params.x = tensors.input(x_);
    params.weight = tensors.input(weight_);
    params.scale = tensors.input<float>(scale_);
    params.bias = tensors.input(bias_);
    params.residual = tensors.input(residual_);
    params.x_moments = tensors.input<float>(x_moments_);
    params.residual_moments = tensors.input<float>(residual_moments_);
    params.residual_scale = tensors.input(residual_scale_);
    params.positions = tensors.input<int>(positions_);
    params.frequencies = tensors.input<float>(frequencies_);
    params.head_scale = tensors.input(head_scale_);
    params.y = tensors.output(y_);
    params.y_e4m3 = tensors.output(y_e4m3_);
    params.y_int8 = tensors.output(y_int8_);
    params.y_factors = tensors.input<float>(y_factors_);
    params.moments = tensors.output<float>(moments_);
    params.scratch = tensors.scratch();
    params.T = tensors.size(x_, 0);
    params.K = tensors.size(x_, 1);
    params.N = tensors.size(weight_, hasBytes() ? 0 : 1);
    setAttributes(params);
    params.type = tensors.type(hasBytes() ? bias_ : x_);
    return launchLinear(params, choose(params.T), stream);
  }

 private:
  void setAttributes(LinearParams& params) const {
    params.int8 = type_ == OperandType::kInt8;
    params.rotary_features = rotary_features_;
    params.x_epsilon = x_epsilon_;
    params.residual_epsilon = params.head_epsilon = residual_epsilon_;
    params.y_scale = y_scale_;
    params.activation = activation_;
    params.gated = gated_;
    params.rms = rms_;
  }

  LinearChoice choose(int tokens) const {
    const auto range =
        std::lower_bound(table_.begin(), table_.end(), tokens,
                         [](const LinearRange& item, int token_count) { return item.tokens < token_count; });
    return range == table_.end() ? kLinearAuto : range->choice;
  }

  bool hasBytes() const { return type_ != OperandType::kHalf; }
  const char* nextStep() const { return hasBytes() ? kByteNextStep : kNextStep; }

  static void checkTokens(int64_t T, int64_t N) {
    const int64_t limit = maxLinearTokens(N);
    if (T <= limit) return;
    throw std::invalid_argument(text("x has T = ", T, "; allowed: up to ", limit, " with N = ", N,
                                     "; use smaller batches, or build with --linear tensorrt"));
  }

  // Throws unless rows of this width have moments: those of groups of 64 features, up to a width of `limit`.
  static void checkGroups(int moments, const char* letter, int64_t width, int64_t limit) {
    if (moments == kAbsent || width < 0 || (width % kMomentFeatures == 0 && width <= limit)) return;
    throw std::invalid_argument(text("rows with moments have ", letter, " = ", width, "; allowed: multiples of ",
                                     kMomentFeatures, " up to ", limit,
                                     "; rewrite the model again, or with --norms separate"));
  }

  const int x_, weight_, scale_, bias_, residual_, x_moments_, residual_moments_, residual_scale_, positions_,
      frequencies_, head_scale_, y_, y_e4m3_, y_int8_, y_factors_, moments_;
  const float x_epsilon_, residual_epsilon_, y_scale_;
  const OperandType type_;
  const bool gated_, rms_;
  const int rotary_features_;
  const Activation activation_;
  const LinearTable table_;  // ascending tokens
};

class LinearFp8 final : public Linear {
 public:
  LinearFp8(const OperatorSchema& schema, const Attributes& attributes)
      : Linear(schema, attributes, OperandType::kE4m3) {}
};

class LinearInt8 final : public Linear {
 public:
  LinearInt8(const OperatorSchema& schema, const Attributes& attributes)
      : Linear(schema, attributes, OperandType::kInt8) {}
};

}  // namespace

OperatorInfo linearOperator() {
  return {linearSchema(), makeOperator<Linear>};
}

OperatorInfo linearFp8Operator() {
  return {linearFp8Schema(), makeOperator<LinearFp8>};
}

OperatorInfo linearInt8Operator() {
  return {linearInt8Schema(), makeOperator<LinearInt8>};
}

}  // namespace padfree
