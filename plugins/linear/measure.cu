// SPDX-License-Identifier: Apache-2.0
// Which tiling of a GEMM is fastest, measured while an engine is built.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/launch.h"
#include "linear/cost_model.h"
#include "linear/measure.h"
#include "linear/stopwatch.h"

namespace padfree {
namespace {

constexpr int kLaunches = 24;      // in a graph; fewer of long ones
constexpr int kMinLaunches = 8;    // of the longest, too
constexpr int kCacheMultiple = 2;  // the weights together, of the L2 cache: a model's layers find theirs in memory
constexpr int64_t kScratchBytes = int64_t{1} << 30;
constexpr int kMaxMeasuredTokens = 16384;  // beyond, there are so many waves that the best tiling no longer changes
constexpr int kTokenStep = 16;  // the tokens of all tiles are multiples of it: what lies between takes as long
constexpr float kWorthChanging = 0.995f;  // of the time of the choice for fewer tokens

// Every element is +-2^-3 times something in [1,2): products neither vanish nor overflow, and draw the usual power.
__global__ void fill(uint16_t* data, int64_t count, uint16_t exponent, uint16_t mantissa) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint32_t bits = static_cast<uint32_t>(i) * 2654435761u;
    bits ^= bits >> 15;
    data[i] = exponent | (bits & (0x8000u | mantissa));
  }
}

struct Free {
  void operator()(void* memory) const { cudaFree(memory); }
};
using Memory = std::unique_ptr<void, Free>;

cudaError_t reserve(Memory& memory, int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaSuccess) memory.reset(data);
  return status;
}

cudaError_t allocate(Memory& memory, int64_t elements, DataType type, cudaStream_t stream) {
  const cudaError_t status = reserve(memory, elements * sizeOf(type));
  if (status != cudaSuccess) return status;
  const bool is_half = type == DataType::kFloat16;
  fill<<<1024, 256, 0, stream>>>(static_cast<uint16_t*>(memory.get()), elements, is_half ? 0x3000 : 0x3e00,
                                 is_half ? 0x03ff : 0x007f);
  return cudaGetLastError();
}

// As fill() does, of e4m3: +-2^-1 times something in [1,2).
cudaError_t allocateE4m3(Memory& memory, int64_t elements, cudaStream_t stream) {
  const int64_t pairs = ceilDiv<int64_t>(elements, 2);
  const cudaError_t status = reserve(memory, pairs * 2);
  if (status != cudaSuccess) return status;
  fill<<<1024, 256, 0, stream>>>(static_cast<uint16_t*>(memory.get()), pairs, 0x3030, 0x8787);
  return cudaGetLastError();
}

// Positive numbers of moderate size, as moments and sums may have.
cudaError_t allocateFloats(Memory& memory, int64_t elements, cudaStream_t stream) {
  const int64_t bytes = elements * sizeof(float);
  const cudaError_t status = reserve(memory, bytes);
  return status == cudaSuccess ? cudaMemsetAsync(memory.get(), 0x3f, bytes, stream) : status;  // 0.747 each
}

// Bytes of an element of x and of the weight.
int operandBytes(const LinearParams& params) {
  return params.scale ? 1 : static_cast<int>(sizeOf(params.type));
}

// The times of a GEMM with as many weights as fill the L2 cache several times.
class Times {
 public:
  Times(const LinearParams& params, int weights, int token_limit, const LinearDevice& device)
      : params_(params), weights_(weights), token_limit_(token_limit), device_(device) {}

  cudaError_t open() { return watch_.open(); }
  cudaStream_t stream() const { return watch_.stream(); }
  LinearParams& params() { return params_; }

  // The fastest of the cost model's candidates for T tokens; the choice for fewer tokens stays where it is as fast.
  cudaError_t choose(int T, LinearChoice& choice) {
    const LinearChoice before = choice;
    float best = std::numeric_limits<float>::max(), unchanged = best;
    for (const LinearChoice candidate : linearCandidates(params_, T, device_)) {
      float milliseconds = 0;
      const cudaError_t status = time(candidate, T, milliseconds);
      if (status != cudaSuccess) return status;
      if (candidate == before) unchanged = milliseconds;
      if (milliseconds >= best) continue;
      best = milliseconds;
      choice = candidate;
    }
    if (best > unchanged * kWorthChanging) choice = before;
    return cudaSuccess;
  }

 private:
  // Measured once for all token counts that take as long.
  cudaError_t time(LinearChoice choice, int T, float& milliseconds) {
    const auto tokens =
        static_cast<int>(std::min<int64_t>(token_limit_, tokensOfSameTime(choice, T, params_.N, device_)));
    const auto [entry, is_new] = times_.try_emplace({choice, tokens}, 0.f);
    if (is_new) {
      const cudaError_t status = measure(choice, tokens, entry->second);
      if (status != cudaSuccess) return status;
    }
    milliseconds = entry->second;
    return cudaSuccess;
  }

  cudaError_t measure(LinearChoice choice, int T, float& milliseconds) {
    LinearParams params = params_;
    params.T = T;
    const int64_t weight_bytes = int64_t{params.K} * params.N * operandBytes(params);
    const auto launch = [&](int i) {
      params.weight = static_cast<const char*>(params_.weight) + i % weights_ * weight_bytes;
      return launchLinear(params, choice, watch_.stream());
    };
    const int launches = std::max(kMinLaunches, kLaunches * kMinHotTokens / std::max(T, kMinHotTokens));
    return watch_.time(launches, isHot(T), launch, milliseconds);
  }

  LinearParams params_;
  const int weights_, token_limit_;
  const LinearDevice device_;
  Stopwatch watch_;
  std::map<std::pair<LinearChoice, int>, float> times_;  // by choice and tokens, milliseconds
};

}  // namespace

cudaError_t measureLinear(const LinearParams& shape, int min_tokens, int max_tokens, std::vector<LinearRange>& table) {
  // x, y and the residual, of which moments take another sixteenth.
  const int64_t token_bytes = int64_t{shape.K + 2 * shape.N} * (sizeOf(shape.type) + 1);
  const int64_t weight_bytes = int64_t{shape.K} * shape.N * operandBytes(shape);
  int cache_bytes = 0;
  LinearDevice device{};
  cudaError_t status = deviceAttribute(cudaDevAttrL2CacheSize, cache_bytes);
  if (status == cudaSuccess) status = linearDevice(device);
  if (status != cudaSuccess) return status;
  const int weights =
      static_cast<int>(std::min<int64_t>(ceilDiv<int64_t>(kCacheMultiple * cache_bytes, weight_bytes), kLaunches));
  const int64_t left = std::max<int64_t>(kScratchBytes - weights * weight_bytes, 0);
  const int token_limit = static_cast<int>(std::min<int64_t>({max_tokens, kMaxMeasuredTokens, left / token_bytes}));
  table.clear();
  if (token_limit < 1) {
    table.push_back({max_tokens, kLinearAuto});
    return cudaSuccess;
  }

  Times times(shape, weights, token_limit, device);
  LinearParams& params = times.params();
  status = times.open();
  std::vector<Memory> memories;
  const auto take = [&](int64_t elements) {
    Memory& memory = memories.emplace_back();
    if (status == cudaSuccess) status = allocate(memory, elements, params.type, times.stream());
    return memory.get();
  };
  const auto takeFloats = [&](int64_t elements) {
    Memory& memory = memories.emplace_back();
    if (status == cudaSuccess) status = allocateFloats(memory, elements, times.stream());
    return static_cast<float*>(memory.get());
  };
  const auto takeOperand = [&](int64_t elements) {
    if (!shape.scale) return take(elements);
    Memory& memory = memories.emplace_back();
    if (status == cudaSuccess) status = allocateE4m3(memory, elements, times.stream());
    return memory.get();
  };
  params.x = takeOperand(int64_t{token_limit} * params.K);
  params.weight = takeOperand(weights * int64_t{params.K} * params.N);
  if (shape.scale != nullptr) params.scale = takeFloats(params.N);
  if (shape.bias != nullptr) params.bias = take(params.N);
  if (shape.residual != nullptr) params.residual = take(int64_t{token_limit} * params.N);
  if (shape.residual_scale != nullptr) params.residual_scale = take(params.N);
  const auto momentsSize = [&](int width) { return int64_t{token_limit} * (width / kMomentFeatures) * 2; };
  if (shape.x_moments != nullptr) params.x_moments = takeFloats(momentsSize(params.K));
  if (shape.residual_moments != nullptr) params.residual_moments = takeFloats(momentsSize(params.N));
  if (shape.moments != nullptr) params.moments = takeFloats(momentsSize(params.N));
  if (shape.rotary_features > 0) {
    // The bits of these floats serve as positions.
    params.positions = reinterpret_cast<const int*>(takeFloats(token_limit));
    params.frequencies = takeFloats(shape.rotary_features / 2);
    if (shape.head_scale != nullptr) params.head_scale = take(shape.rotary_features);
  }
  if (!device.is_hopper) params.scratch = takeFloats(kLinearTailScratchBytes / sizeof(float));
  if (shape.y != nullptr) params.y = take(int64_t{token_limit} * params.N);
  if (shape.y_e4m3 != nullptr) params.y_e4m3 = takeOperand(int64_t{token_limit} * params.N);
  if (status != cudaSuccess) return status;

  LinearChoice choice = kLinearAuto;
  for (int T = ceilDiv(std::max(min_tokens, 1), kTokenStep) * kTokenStep;; T += kTokenStep) {
    const bool last = T >= token_limit;
    status = times.choose(last ? token_limit : T, choice);
    if (status != cudaSuccess) return status;
    if (!table.empty() && table.back().choice == choice) table.pop_back();
    table.push_back({last ? max_tokens : T, choice});
    if (last) return cudaSuccess;
  }
}

}  // namespace padfree
