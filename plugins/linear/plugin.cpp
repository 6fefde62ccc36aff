// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/text.h"
#include "linear/measure.h"
#include "linear/mma/menu.h"
#include "linear/tables.h"
#include "linear/tiling.h"
#include "shell/device_code.h"
#include "shell/operator.h"
#include "shell/result_types.h"
#include "shell/schemas.h"

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
  if (status != cudaSuccess) throwInvalid(what, ": ", reasonOf(status), kNextStep);
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
    throwInvalid("the engine holds ", field.size(), " numbers for its choices; allowed: pairs; build the engine again");
  }
  LinearTable table;
  for (size_t i = 0; i < field.size(); i += 2) table.push_back({field[i], field[i + 1]});
  if (const LinearRange* const range = findUnknown(table)) {
    throwInvalid("the engine chooses ", range->choice, " for ", range->tokens,
                 " tokens, which this library does not know; build the engine again");
  }
  return table;
}

// PadfreeLinear, and PadfreeLinearFp8 and PadfreeLinearInt8, whose operands have a byte.
template <OperandType kOperands>
class Linear final : public Operator {
 public:
  using Operator::Operator;

  void checkSizes(const Sizes& sizes) const override {
    const int multiple = kHasBytes ? kByteSizeMultiple : kSizeMultiple;
    const int gated_multiple = kPairBlock * (kHasBytes ? 2 : 1);
    for (const char* letter : {"K", "N"}) {
      const int64_t size = sizes.get(letter);
      if (size < 0 || (size > 0 && size % multiple == 0)) continue;
      throwInvalid("the weight has ", letter, " = ", size, "; allowed: multiples of ", multiple, kAdvice);
    }
    if (constants_.gated && sizes.get("N") % gated_multiple > 0) {
      throwInvalid("the gated weight has N = ", sizes.get("N"), "; allowed: multiples of ", gated_multiple, kAdvice);
    }
    if (sizes.get("N") >= 0 && constants_.rotary_features > sizes.get("N")) {
      throwInvalid("rotary_features is ", constants_.rotary_features, " with N = ", sizes.get("N"),
                   "; allowed: up to N; rewrite the model again");
    }
    const int head = constants_.wide_heads ? kWideHead : kNormedHead;
    if (head_scale_ != kAbsent && constants_.rotary_features % head != 0) {
      throwInvalid("rotary_features is ", constants_.rotary_features, " with ",
                   constants_.wide_heads ? "wide_heads" : "norms_heads", "; allowed: multiples of ", head,
                   "; rewrite the model again");
    }
    if (sizes.get("N") > 0) checkTokens(sizes.get("T"), sizes.get("N"));
    checkGroups(x_moments_, "K", sizes.get("K"), kMaxNormedWidth);
    checkGroups(residual_moments_, "N", sizes.get("N"), kMaxNormedWidth);
    checkGroups(moments_, "N", sizes.get("N"), kMaxGridX);
  }

  std::vector<int32_t> measure(const ProfiledTensors& tensors) const override {
    int device = 0;
    check(cudaGetDevice(&device), "there is no GPU to measure on");
    checkGpu(kOperands);
    if (kOperands == OperandType::kInt8) return {};  // the cost model chooses between its few tiles
    static float data[1] = {};                       // only whether pointers are null is looked at
    const std::vector<const void*> present_inputs(inputs().size(), data);
    const std::vector<void*> present_outputs(outputs().size(), data);
    LinearParams params = paramsOf({nullptr, present_inputs.data(), present_outputs.data(), nullptr});
    params.K = tensors.maximum(weight_, kHasBytes ? 1 : 0);
    params.N = tensors.maximum(weight_, kHasBytes ? 0 : 1);
    params.type = tensors.type(kHasBytes ? bias_ : x_);
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
    if (linearDevice(device) != cudaSuccess || device.is_hopper) return 0;
    const auto hasTail = [](const LinearRange& range) { return hasMmaTail(mmaTilingOf(range.choice)); };
    return std::any_of(table_.begin(), table_.end(), hasTail) ? kLinearTailScratchBytes : kLinearScratchBytes;
  }

  cudaError_t enqueue(const Tensors& tensors, cudaStream_t stream) const override {
    LinearParams params = paramsOf(tensors);
    params.T = tensors.size(x_, 0);
    params.K = tensors.size(x_, 1);
    params.N = tensors.size(weight_, kHasBytes ? 0 : 1);
    params.type = tensors.type(kHasBytes ? bias_ : x_);
    return launchLinear(params, choose(params.T), stream);
  }

 private:
  static constexpr bool kHasBytes = kOperands != OperandType::kHalf;
  static constexpr const char* kAdvice = kHasBytes ? kByteNextStep : kNextStep;

  // What does not change from call to call.
  LinearParams constants() const {
    LinearParams params{};
    params.int8 = kOperands == OperandType::kInt8;
    params.rotary_features = attributes_.integer("rotary_features");
    params.x_epsilon = attributes_.real("x_epsilon");
    params.residual_epsilon = params.head_epsilon = attributes_.real("residual_epsilon");
    params.y_scale = kOperands == OperandType::kE4m3 ? attributes_.real("y_scale") : 1.f;
    params.activation = activationOf(attributes_.choice("activation"));
    params.wide_heads = kOperands == OperandType::kHalf && attributes_.flag("wide_heads");
    params.gated = attributes_.flag("gated");
    params.rms = attributes_.flag("rms");
    return params;
  }

  // These and the pointers of a call.
  LinearParams paramsOf(const Tensors& tensors) const {
    LinearParams params = constants_;
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
    return params;
  }

  LinearChoice choose(int tokens) const {
    const auto range =
        std::lower_bound(table_.begin(), table_.end(), tokens,
                         [](const LinearRange& item, int token_count) { return item.tokens < token_count; });
    return range == table_.end() ? kLinearAuto : range->choice;
  }

  static void checkTokens(int64_t T, int64_t N) {
    const int64_t limit = maxLinearTokens(N);
    if (T <= limit) return;
    throwInvalid("x has T = ", T, "; allowed: up to ", limit, " with N = ", N,
                 "; use smaller batches, or build with --linear tensorrt");
  }

  // Throws unless rows of this width have moments: those of groups of 64 features, up to a width of `limit`.
  static void checkGroups(int moments, const char* letter, int64_t width, int64_t limit) {
    if (moments == kAbsent || width < 0 || (width % kMomentFeatures == 0 && width <= limit)) return;
    throwInvalid("rows with moments have ", letter, " = ", width, "; allowed: multiples of ", kMomentFeatures,
                 " up to ", limit, "; rewrite the model again, or with --norms separate");
  }

  const int x_ = input("x"), weight_ = input("weight"), scale_ = input("scale"), bias_ = input("bias"),
            residual_ = input("residual"), x_moments_ = input("x_moments"),
            residual_moments_ = input("residual_moments"), residual_scale_ = input("residual_scale"),
            positions_ = input("positions"), frequencies_ = input("frequencies"), head_scale_ = input("head_scale"),
            y_ = output("y"), y_e4m3_ = output("y_e4m3"), y_int8_ = output("y_int8"), y_factors_ = input("y_factors"),
            moments_ = output("moments");
  const LinearParams constants_ = constants();
  const LinearTable table_ =  // ascending tokens
      kOperands == OperandType::kInt8 ? LinearTable{} : tableOf(attributes_.measured("choices"));
};

}  // namespace

OperatorInfo linearOperator() {
  return {linearSchema(), makeOperator<Linear<OperandType::kHalf>>};
}

OperatorInfo linearFp8Operator() {
  return {linearFp8Schema(), makeOperator<Linear<OperandType::kE4m3>>};
}

OperatorInfo linearInt8Operator() {
  return {linearInt8Schema(), makeOperator<Linear<OperandType::kInt8>>};
}

}  // namespace padfree
