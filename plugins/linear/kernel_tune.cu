// SPDX-License-Identifier: Apache-2.0
// Which cut of a product is fastest, measured while an engine is built.
#include <algorithm>
#include <array>
#include <memory>

#include "common/launch.h"
#include "linear/kernel.h"
#include "linear/tune.h"

namespace padfree {
namespace {

constexpr int kWarmUps = 1;
constexpr int kRuns = 5;
constexpr int kMostMeasuredTokens = 16384;  // beyond, waves are so many that the best cut no longer changes
constexpr double kBucketGrowth = 1.12;      // of the token count from one measurement to the next
constexpr int kSmallestBucket = 64;

LinearTile tileOf(LinearChoice choice) {
  return {choice & 0xffff, choice >> 16 & 0xf, choice >> 20 & 0xf};
}

LinearChoice choiceOf(const LinearTile& tile) {
  return tile.tokens | tile.cluster_features << 16 | tile.cluster_tokens << 20;
}

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

cudaError_t allocate(Memory& memory, int64_t elements, DataType type, cudaStream_t stream) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, elements * sizeOf(type));
  if (status != cudaSuccess) return status;
  memory.reset(data);
  const bool is_half = type == DataType::kFloat16;
  fill<<<1024, 256, 0, stream>>>(static_cast<uint16_t*>(data), elements, is_half ? 0x3000 : 0x3e00,
                                 is_half ? 0x03ff : 0x007f);
  return cudaGetLastError();
}

// Times launches on a stream of its own.
class Stopwatch {
 public:
  cudaError_t open() {
    cudaError_t status = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    for (cudaEvent_t& event : events_) {
      if (status == cudaSuccess) status = cudaEventCreate(&event);
    }
    return status;
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }

  cudaError_t time(const LinearParams& params, const LinearTile& tile, float& milliseconds) {
    cudaError_t status = cudaSuccess;
    for (int run = -kWarmUps; run < kRuns && status == cudaSuccess; ++run) {
      if (run == 0) status = cudaEventRecord(events_[0], stream_);
      if (status == cudaSuccess) status = launchLinearSm90(params, tile, stream_);
    }
    if (status == cudaSuccess) status = cudaEventRecord(events_[1], stream_);
    if (status == cudaSuccess) status = cudaEventSynchronize(events_[1]);
    if (status == cudaSuccess) status = cudaEventElapsedTime(&milliseconds, events_[0], events_[1]);
    return status;
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, 2> events_{};
};

std::vector<LinearTile> candidates(int T) {
  std::vector<LinearTile> tiles;
  for (int tokens : {32, 64, 96, 128, 160, 192, 224, 256}) {
    if (tokens > 32 && tokens >= T + 32) break;
    tiles.insert(tiles.end(), {{tokens, 2, 1}, {tokens, 1, 2}, {tokens, 1, 1}});
  }
  return tiles;
}

cudaError_t fastest(Stopwatch& watch, const LinearParams& params, LinearChoice& choice) {
  float best = 0;
  choice = kLinearAuto;
  for (const LinearTile& tile : candidates(params.T)) {
    float milliseconds = 0;
    const cudaError_t status = watch.time(params, tile, milliseconds);
    if (status != cudaSuccess) return status;
    if (choice != kLinearAuto && milliseconds >= best) continue;
    best = milliseconds;
    choice = choiceOf(tile);
  }
  return cudaSuccess;
}

}  // namespace

bool isLinearChoice(LinearChoice choice) {
  const LinearTile tile = tileOf(choice);
  const auto is_cluster = [](int size) { return size == 1 || size == 2; };
  return choice == kLinearAuto ||
         (choice == choiceOf(tile) && tile.tokens > 0 && tile.tokens <= kMaxLinearTokens && tile.tokens % 16 == 0 &&
          is_cluster(tile.cluster_features) && is_cluster(tile.cluster_tokens));
}

cudaError_t launchLinear(const LinearParams& params, LinearChoice choice, cudaStream_t stream) {
  if (choice == kLinearAuto) return launchLinear(params, stream);
  return launchLinearSm90(params, tileOf(choice), stream);
}

cudaError_t measureLinear(const LinearParams& shape, int min_tokens, int max_tokens, std::vector<LinearRange>& table) {
  const int measured = std::min(max_tokens, kMostMeasuredTokens);
  LinearParams params = shape;
  Stopwatch watch;
  cudaError_t status = watch.open();
  Memory x, weight, bias, residual, y;
  const auto take = [&](Memory& memory, int64_t elements) {
    if (status == cudaSuccess) status = allocate(memory, elements, params.type, watch.stream());
    return memory.get();
  };
  params.x = take(x, int64_t{measured} * params.K);
  params.weight = take(weight, int64_t{params.K} * params.N);
  if (shape.bias != nullptr) params.bias = take(bias, params.N);
  if (shape.residual != nullptr) params.residual = take(residual, int64_t{measured} * params.N);
  params.y = take(y, int64_t{measured} * params.N);
  if (status != cudaSuccess) return status;

  table.clear();
  double edge = std::max(min_tokens, kSmallestBucket);
  for (bool last = false; !last; edge *= kBucketGrowth) {
    params.T = std::min(static_cast<int>(edge), measured);
    last = params.T == measured;
    LinearChoice choice = kLinearAuto;
    status = fastest(watch, params, choice);
    if (status != cudaSuccess) return status;
    if (!table.empty() && table.back().choice == choice) table.pop_back();
    table.push_back({last ? max_tokens : params.T, choice});
  }
  return cudaSuccess;
}

}  // namespace padfree
