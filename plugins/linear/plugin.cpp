// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <stdexcept>

#include "linear/measure.h"
#include "linear/tables.h"
#include "linear/tiling.h"
#include "shell/device_code.h"
#include "shell/operator.h"
#include "shell/result_types.h"
#include "shell/text.h"

namespace padfree {
namespace {

constexpr int kSizeMultiple = 8, kE4m3SizeMultiple = 16;  // of K and N
constexpr int kLeastVersion = 80;                         // compute capability, without the point
constexpr const char* kNextStep = "; build with --linear tensorrt";
constexpr const char* kE4m3NextStep = "; keep this linear layer in fp16 (--keep), or build with --precision fp16";

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

// Whether there are tilings to measure, which only Hopper's kernel has. Throws where no kernel runs.
bool hasTilings(bool e4m3) {
  const int version =
      e4m3 ? checkCapability(kLeastE4m3Version, kE4m3NextStep) : checkCapability(kLeastVersion, kNextStep);
  return version / 10 == 9;
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

// PadfreeLinear, and PadfreeLinearFp8, whose operands are e4m3.
class Linear : public Operator {
 public:
  explicit Linear(const Attributes& attributes, bool e4m3 = false)
      : x_(addInput("x", e4m3 ? TensorKind::kE4m3 : TensorKind::kHalf, "[T,K]")),
        weight_(addInput("weight", e4m3 ? TensorKind::kE4m3 : TensorKind::kHalf, e4m3 ? "[N,K]" : "[K,N]")),
        scale_(addInput("scale", TensorKind::kFloat, "[N]", e4m3)),
        bias_(addInput("bias", TensorKind::kHalf, "[N]", e4m3 || attributes.flag("has_bias"))),
        residual_(addInput("residual", TensorKind::kHalf, "[T,N]", attributes.flag("has_residual"))),
        x_moments_(addInput("x_moments", TensorKind::kFloat, "[G,T,2]", attributes.flag("has_x_moments"))),
        residual_moments_(
            addInput("residual_moments", TensorKind::kFloat, "[R,T,2]", attributes.flag("has_residual_moments"))),
        residual_scale_(addInput("residual_scale", TensorKind::kHalf, "[N]", attributes.flag("has_residual_moments"))),
        positions_(addInput("positions", TensorKind::kInt32, "[T]", attributes.integer("rotary_features") > 0)),
        frequencies_(addInput("frequencies", TensorKind::kFloat,
                              text("[", attributes.integer("rotary_features") / 2, "]"),
                              attributes.integer("rotary_features") > 0)),
        y_(addOutput("y", TensorKind::kHalf, resultShape(attributes), !e4m3 || attributes.choice("results") != "e4m3")),
        y_e4m3_(addOutput("y_e4m3", TensorKind::kE4m3, resultShape(attributes),
                          e4m3 && attributes.choice("results") != "act")),
        moments_(addOutput("moments", TensorKind::kFloat, "[M,T,2]", attributes.flag("has_moments"))),
        x_epsilon_(attributes.real("x_epsilon")),
        residual_epsilon_(attributes.real("residual_epsilon")),
        y_scale_(e4m3 ? attributes.real("y_scale") : 1.f),
        e4m3_(e4m3),
        gated_(attributes.flag("gated")),
        rms_(attributes.flag("rms")),
        rotary_features_(attributes.integer("rotary_features")),
        activation_(activationOf(attributes.choice("activation"))),
        table_(tableOf(attributes.measured("choices"))) {
    if (x_moments_ != kAbsent && residual_moments_ != kAbsent) {
      throw std::invalid_argument("has_x_moments is 1 with has_residual_moments 1; allowed: one of them");
    }
    if (residual_moments_ != kAbsent && residual_ == kAbsent) {
      throw std::invalid_argument(
          "has_residual_moments is 1 with has_residual 0; allowed: moments only with their residual");
    }
    if (activation_ != Activation::kNone && (residual_moments_ != kAbsent || moments_ != kAbsent)) {
      throw std::invalid_argument(text("activation is '", attributes.choice("activation"),
                                       "' with moments of y or of the residual; allowed: 'none'"));
    }
    if (gated_ && (residual_ != kAbsent || moments_ != kAbsent || rotary_features_ > 0)) {
      throw std::invalid_argument("gated is 1 with a residual, moments of y or rotary_features; allowed: none of them");
    }
    if (rotary_features_ > 0 && (activation_ != Activation::kNone || residual_ != kAbsent || moments_ != kAbsent)) {
      throw std::invalid_argument(text("rotary_features is ", rotary_features_,
                                       " with an activation, a residual or moments of y; allowed: none of them"));
    }
    if (e4m3) checkE4m3(attributes);
  }

  void checkSizes(const Sizes& sizes) const override {
    const int multiple = e4m3_ ? kE4m3SizeMultiple : kSizeMultiple, gated_multiple = kPairBlock * (e4m3_ ? 2 : 1);
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
    if (sizes.get("N") > 0) checkTokens(sizes.get("T"), sizes.get("N"));
    if (x_moments_ != kAbsent) checkGroups("x_moments", sizes.get("G"), "K", sizes.get("K"));
    if (residual_moments_ != kAbsent) checkGroups("residual_moments", sizes.get("R"), "N", sizes.get("N"));
    if (moments_ != kAbsent) checkGroups("moments", sizes.get("N") / kMomentFeatures, "N", sizes.get("N"));
  }

  void deriveSizes(SizeExpressions& sizes) const override {
    if (moments_ != kAbsent) sizes.set("M", (sizes.at("N") / kMomentFeatures).get());
    if (gated_) sizes.set("F", (sizes.at("N") / 2).get());
  }

  std::vector<int32_t> measure(const ProfiledTensors& tensors) const override {
    int device = 0;
    check(cudaGetDevice(&device), "there is no GPU to measure on");
    if (!hasTilings(e4m3_)) return {};
    static constexpr float kPresent[1] = {};  // only whether pointers are null is looked at
    const auto present = [&](int index) { return index == kAbsent ? nullptr : kPresent; };
    LinearParams params{};
    params.K = tensors.maximum(weight_, e4m3_ ? 1 : 0);
    params.N = tensors.maximum(weight_, e4m3_ ? 0 : 1);
    setAttributes(params);
    params.type = tensors.type(e4m3_ ? bias_ : x_);
    params.scale = present(scale_);
    params.y = y_ == kAbsent ? nullptr : const_cast<float*>(kPresent);
    params.y_e4m3 = y_e4m3_ == kAbsent ? nullptr : const_cast<float*>(kPresent);
    params.bias = present(bias_);
    params.residual = present(residual_);
    params.x_moments = present(x_moments_);
    params.residual_moments = present(residual_moments_);
    params.residual_scale = present(residual_scale_);
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
    params.y = tensors.output(y_);
    params.y_e4m3 = tensors.output(y_e4m3_);
    params.moments = tensors.output<float>(moments_);
    params.T = tensors.size(x_, 0);
    params.K = tensors.size(x_, 1);
    params.N = tensors.size(weight_, e4m3_ ? 0 : 1);
    setAttributes(params);
    params.type = tensors.type(e4m3_ ? bias_ : x_);
    return launchLinear(params, choose(params.T), stream);
  }

 private:
  void setAttributes(LinearParams& params) const {
    params.rotary_features = rotary_features_;
    params.x_epsilon = x_epsilon_;
    params.residual_epsilon = residual_epsilon_;
    params.y_scale = y_scale_;
    params.activation = activation_;
    params.gated = gated_;
    params.rms = rms_;
  }

  LinearChoice choose(int tokens) const {
    const auto range = std::lower_bound(table_.begin(), table_.end(), tokens,
                                        [](const LinearRange& item, int wanted) { return item.tokens < wanted; });
    return range == table_.end() ? kLinearAuto : range->choice;
  }

  const char* nextStep() const { return e4m3_ ? kE4m3NextStep : kNextStep; }

  static const char* resultShape(const Attributes& attributes) { return attributes.flag("gated") ? "[T,F]" : "[T,N]"; }

  // Throws unless the kernels have results of these types.
  static void checkE4m3(const Attributes& attributes) {
    const std::string results = attributes.choice("results");
    if (attributes.flag("has_moments") && results == "e4m3") {
      throw std::invalid_argument("results is 'e4m3' with has_moments 1; allowed: 'act', 'both'");
    }
    if (attributes.flag("gated") && results == "both") {
      throw std::invalid_argument("results is 'both' with gated 1; allowed: 'act', 'e4m3'");
    }
    if (attributes.integer("rotary_features") > 0 && results != "act") {
      throw std::invalid_argument(text("results is '", results, "' with rotary_features ",
                                       attributes.integer("rotary_features"), "; allowed: 'act'"));
    }
    checkE4m3Scale(attributes.real("y_scale"));
  }

  static void checkTokens(int64_t T, int64_t N) {
    const int64_t most = mostLinearTokens(N);
    if (T <= most) return;
    throw std::invalid_argument(text("x has T = ", T, "; allowed: up to ", most, " with N = ", N,
                                     "; use smaller batches, or build with --linear tensorrt"));
  }

  // Throws unless moments of rows of this width come in groups of 64 features.
  static void checkGroups(const char* tensor, int64_t groups, const char* letter, int64_t width) {
    if (groups < 0 || width < 0 || (width % kMomentFeatures == 0 && groups == width / kMomentFeatures)) return;
    throw std::invalid_argument(text(tensor, " has ", groups, " groups for ", letter, " = ", width,
                                     "; allowed: one for every ", kMomentFeatures, " of a multiple of ",
                                     kMomentFeatures, "; rewrite the model again, or with --norms separate"));
  }

  const int x_, weight_, scale_, bias_, residual_, x_moments_, residual_moments_, residual_scale_, positions_,
      frequencies_, y_, y_e4m3_, moments_;
  const float x_epsilon_, residual_epsilon_, y_scale_;
  const bool e4m3_, gated_, rms_;
  const int rotary_features_;
  const Activation activation_;
  const LinearTable table_;  // ascending tokens
};

class LinearFp8 final : public Linear {
 public:
  explicit LinearFp8(const Attributes& attributes) : Linear(attributes, true) {}
};

// The fields of both operators, with `others` instead of has_bias.
std::vector<FieldSpec> fieldsWith(const std::vector<FieldSpec>& others) {
  std::vector<FieldSpec> fields{choiceField("activation", {"none", "gelu", "gelu_tanh", "relu", "silu", "sigmoid"})};
  fields.insert(fields.end(), others.begin(), others.end());
  fields.insert(fields.end(), {flagField("has_residual"), flagField("has_x_moments"), flagField("has_residual_moments"),
                               flagField("has_moments"), flagField("gated"), flagField("rms"),
                               integerField("rotary_features", 0, std::numeric_limits<int32_t>::max(), kPairBlock),
                               nonNegativeRealField("x_epsilon"), nonNegativeRealField("residual_epsilon"),
                               measuredField("choices")});
  return fields;
}

}  // namespace

OperatorInfo linearOperator() {
  return {"PadfreeLinear", fieldsWith({flagField("has_bias")}), makeOperator<Linear>};
}

OperatorInfo linearFp8Operator() {
  return {"PadfreeLinearFp8", fieldsWith(resultsFields()), makeOperator<LinearFp8>};
}

}  // namespace padfree
