// SPDX-License-Identifier: Apache-2.0
// y = activation(x W + bias) + residual for Hopper (sm_90a). The product is computed transposed: features are the 64
// rows of a matrix instruction, tokens its columns, so that tiles of any multiple of 16 tokens exist and waves of tiles
// can be filled for any number of tokens. Blocks stay and take tile after tile: one warp fetches (TMA, shared by the
// blocks of a cluster), two warpgroups of 64 features each multiply.
#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "common/tensor_map.h"
#include "linear/activation.cuh"
#include "linear/copy.cuh"
#include "linear/kernel.h"
#include "linear/wgmma.cuh"

namespace padfree {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kGroups = 2;
constexpr int kGroupFeatures = kLinearFeatures / kGroups;
constexpr int kThreads = (1 + kGroups) * kWarpgroup;
constexpr int kDepth = 64;  // of the reduction, a stage: one panel's row
constexpr int kMaxStages = 8;
constexpr int kChunk = 32;                       // tokens that a warpgroup finishes together
constexpr int kBoxTokens = 16;                   // tokens that leave with one copy
constexpr int kBuffers = 4;                      // of a chunk, a warpgroup
constexpr int kBoxBytes = kBoxTokens * kPanelRowBytes;
constexpr int kChunkBytes = kChunk * kPanelRowBytes;
constexpr int kSharedLimit = 227 * 1024 - 1024;  // less barriers

template <int kTokens>
struct Shape {
  static constexpr int kPanelBytes = kDepth * kPanelRowBytes;  // 64 features
  static constexpr int kWeightBytes = kGroups * kPanelBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kPanelRowBytes;
  static constexpr int kOutBytes = kGroups * kBuffers * kChunkBytes;
  static constexpr int kFit = (kSharedLimit - 1024 - kOutBytes) / kStageBytes;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int kSharedBytes = kStages * kStageBytes + kOutBytes + 1024;  // and room to align
};

struct Maps {
  CUtensorMap x;         // [T,K] in boxes of the tokens that one block fetches for its cluster
  CUtensorMap weight;    // [K,N] in boxes of 64 x 64
  CUtensorMap y;         // [T,N] in boxes of a chunk
  CUtensorMap residual;  // as y
};

struct Work {
  const void* bias;
  int N, blocks;  // of the reduction
  Activation activation;
  bool residual;
  int cluster_features, cluster_tokens;
  int feature_clusters, clusters;  // clusters of tiles: along the features, in all
};

struct Barriers {
  uint64_t full[kMaxStages], empty[kMaxStages], residual[kGroups][kBuffers];
};

// Place in the ring of stages, and how often it went round.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Where this block stands in its cluster and which tiles it computes.
struct Position {
  unsigned rank;
  int feature, token;  // in the cluster
  int first, step;     // clusters of tiles

  __device__ explicit Position(const Work& work) : rank(clusterRank()) {
    const int size = work.cluster_features * work.cluster_tokens;
    feature = rank % work.cluster_features;
    token = rank / work.cluster_features;
    first = blockIdx.x / size;
    step = gridDim.x / size;
  }
  __device__ int featureTile(const Work& work, int cluster) const {
    return cluster % work.feature_clusters * work.cluster_features + feature;
  }
  __device__ int tokenTile(const Work& work, int cluster) const {
    return cluster / work.feature_clusters * work.cluster_tokens + token;
  }
};

template <int kTokens>
__device__ void fetch(const Work& work, const Maps& maps, const Position& at, Barriers& barriers, unsigned stages) {
  using S = Shape<kTokens>;
  const int fetched_tokens = kTokens / work.cluster_features;  // of x: this block's part for its cluster
  const int fetched_panels = kGroups / work.cluster_tokens;    // of W
  const auto row = static_cast<uint16_t>(((1u << work.cluster_features) - 1) << at.token * work.cluster_features);
  const auto column = static_cast<uint16_t>((1u | (work.cluster_tokens - 1) << work.cluster_features) << at.feature);
  const auto fetchWeight = [&](int stage, int cluster, int block) {
    barrierExpect(&barriers.full[stage], S::kStageBytes);
    for (int i = 0; i < fetched_panels; ++i) {
      const int panel = at.token * fetched_panels + i;
      copyBox(stages + stage * S::kStageBytes + panel * S::kPanelBytes, maps.weight,
              at.featureTile(work, cluster) * kLinearFeatures + panel * kGroupFeatures, block * kDepth,
              &barriers.full[stage], column);
    }
  };
  const auto fetchInput = [&](int stage, int cluster, int block) {
    const int first = at.feature * fetched_tokens;
    copyBox(stages + stage * S::kStageBytes + S::kWeightBytes + first * kPanelRowBytes, maps.x, block * kDepth,
            at.tokenTile(work, cluster) * kTokens + first, &barriers.full[stage], row);
  };

  // Weights are constant: those of the first stages may be fetched while the grid before still writes x.
  const int early = min(S::kStages, work.blocks);
  for (int block = 0; block < early; ++block) fetchWeight(block, at.first, block);
  waitForPriorGrids();
  for (int block = 0; block < early; ++block) fetchInput(block, at.first, block);

  Ring<S::kStages> ring;
  for (int cluster = at.first; cluster < work.clusters; cluster += at.step) {
    for (int block = 0; block < work.blocks; ++block, ring.advance()) {
      if (cluster == at.first && block < early) continue;
      barrierWait(&barriers.empty[ring.stage], ring.parity ^ 1);
      fetchWeight(ring.stage, cluster, block);
      fetchInput(ring.stage, cluster, block);
    }
  }
}

template <typename T, int kTokens>
class Consumer {
  using S = Shape<kTokens>;

 public:
  __device__ Consumer(const Work& work, const Maps& maps, Barriers& barriers, unsigned stages, unsigned char* out)
      : work_(work),
        maps_(maps),
        barriers_(barriers),
        stages_(stages),
        group_(__shfl_sync(kFullMask, threadIdx.x / kWarpgroup, 0) - 1),
        in_group_(threadIdx.x % kWarpgroup),
        lane_(threadIdx.x % kWarpSize),
        out_(out + group_ * kBuffers * kChunkBytes) {}

  __device__ void run(const Position& at) {
    const unsigned cluster_size = work_.cluster_features * work_.cluster_tokens;
    for (int cluster = at.first; cluster < work_.clusters; cluster += at.step) {
      const int feature = at.featureTile(work_, cluster) * kLinearFeatures + group_ * kGroupFeatures;
      const int token = at.tokenTile(work_, cluster) * kTokens;
      if (work_.residual && in_group_ == 0) requestFirstResiduals(feature, token);
      const float2 bias = loadBias(feature + in_group_ / kWarpSize * 16 + lane_ / 4);
      multiply(cluster_size);
      finish(feature, token, bias);
    }
  }

 private:
  __device__ void multiply(unsigned cluster_size) {
    int before = 0;
    for (int block = 0; block < work_.blocks; ++block, ring_.advance()) {
      const uint64_t a = panelDescriptor(stages_ + ring_.stage * S::kStageBytes + group_ * S::kPanelBytes);
      const uint64_t b = panelDescriptor(stages_ + ring_.stage * S::kStageBytes + S::kWeightBytes);
      barrierWait(&barriers_.full[ring_.stage], ring_.parity);
      wgmmaFence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        // 16 rows of W further, 16 columns of x further, in units of 16 bytes.
        multiplyTile<T, kTokens>(sums_, a + k * (16 * kPanelRowBytes >> 4), b + k * (16 * 2 >> 4), block + k > 0);
      }
      wgmmaCommit();
      wgmmaWait<1>();
      if (block > 0) release(before, cluster_size);
      before = ring_.stage;
    }
    wgmmaWait<0>();
    release(before, cluster_size);
  }

  // Tells every block of the cluster that this warp has left a stage.
  __device__ void release(int stage, unsigned cluster_size) {
    if (lane_ < cluster_size) barrierArriveAt(&barriers_.empty[stage], lane_);
  }

  __device__ float2 loadBias(int feature) const {
    const T* bias = static_cast<const T*>(work_.bias);
    float2 value{};
    if (bias && feature < work_.N) value.x = toFloat(bias[feature]);
    if (bias && feature + 8 < work_.N) value.y = toFloat(bias[feature + 8]);
    return value;
  }

  // Asks for the residual of the tokens of a tile from `first` on, a chunk of them, in the buffer that they leave from.
  __device__ void requestResidual(int feature, int token, int first, int chunk) {
    const int boxes = min(kChunk, kTokens - first) / kBoxTokens, buffer = chunk % kBuffers;
    barrierExpect(&barriers_.residual[group_][buffer], boxes * kBoxBytes);
    for (int box = 0; box < boxes; ++box) {
      copyBox(sharedAddress(out_) + buffer * kChunkBytes + box * kBoxBytes, maps_.residual, feature,
              token + first + box * kBoxTokens, &barriers_.residual[group_][buffer]);
    }
  }

  // Those of the first chunks, while the products are computed.
  __device__ void requestFirstResiduals(int feature, int token) {
    waitStoresRead<kBuffers - kAhead>();
    for (int i = 0; i < kAhead && i * kChunk < kTokens; ++i) requestResidual(feature, token, i * kChunk, chunk_ + i);
  }

  // Bias, activation, residual; through shared memory, where a transposing store turns features back into columns.
  template <typename Function>
  __device__ void finish(int feature, int token, float2 bias, Function activate) {
    const int row = lane_ / 16 * 8 + lane_ % 8, column = in_group_ / kWarpSize * 2 + lane_ / 8 % 2;
#pragma unroll
    for (int first = 0; first < kTokens; first += kChunk, ++chunk_) {
      const int boxes = min(kChunk, kTokens - first) / kBoxTokens;
      const int buffer = chunk_ % kBuffers;
      if (work_.residual) barrierWait(&barriers_.residual[group_][buffer], chunk_ / kBuffers % 2);
#pragma unroll
      for (int box = 0; box < boxes; ++box) {
        unsigned char* const place =
            out_ + buffer * kChunkBytes + box * kBoxBytes + panelOffset(row, column);
        float value[4][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float (&sum)[4] = sums_[first / 8 + box * 2 + i / 2];
          const float added = i % 2 ? bias.y : bias.x;
          value[i][0] = activate(sum[i % 2 * 2] + added);
          value[i][1] = activate(sum[i % 2 * 2 + 1] + added);
        }
        unsigned packed[4];
        if (work_.residual) {
          loadMatricesTransposed(packed, place);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 residual = unpackPair<T>(packed[i]);
            value[i][0] += residual.x;
            value[i][1] += residual.y;
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) packed[i] = packPair<T>(value[i][0], value[i][1]);
        storeMatricesTransposed(packed, place);
      }
      fenceSharedForWgmma();
      if (in_group_ == 0) waitStoresRead<kBuffers - 2>();  // for the next chunk's buffer
      namedBarrier(group_ + 1, kWarpgroup);
      if (in_group_ == 0) {
#pragma unroll
        for (int box = 0; box < boxes; ++box) {
          storeBox(maps_.y, sharedAddress(out_) + buffer * kChunkBytes + box * kBoxBytes, feature,
                   token + first + box * kBoxTokens);
        }
        commitStores();
        if (work_.residual && first + kAhead * kChunk < kTokens) {
          waitStoresRead<kBuffers - kAhead>();
          requestResidual(feature, token, first + kAhead * kChunk, chunk_ + kAhead);
        }
      }
    }
  }

  __device__ void finish(int feature, int token, float2 bias) {
    switch (work_.activation) {
      case Activation::kGelu:
        return finish(feature, token, bias, [](float x) { return gelu(x); });
      case Activation::kGeluTanh:
        return finish(feature, token, bias, [](float x) { return geluTanh(x); });
      case Activation::kRelu:
        return finish(feature, token, bias, [](float x) { return fmaxf(x, 0.f); });
      case Activation::kSilu:
        return finish(feature, token, bias, [](float x) { return timesSigmoid(x, x); });
      case Activation::kNone:
        return finish(feature, token, bias, [](float x) { return x; });
    }
  }

  static constexpr int kAhead = kBuffers / 2;  // residual chunks under way
  const Work& work_;
  const Maps& maps_;
  Barriers& barriers_;
  const unsigned stages_;
  const int group_, in_group_, lane_;
  unsigned char* const out_;
  Ring<S::kStages> ring_;
  int chunk_ = 0;  // finished, of all tiles
  float sums_[kTokens / 8][4];
};

template <typename T, int kTokens>
__global__ void __launch_bounds__(kThreads, 1)
    linearSm90Kernel(const __grid_constant__ Work work, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shape<kTokens>;
  extern __shared__ unsigned char shared_bytes[];
  __shared__ Barriers barriers;
  unsigned char* const aligned = shared_bytes + (-sharedAddress(shared_bytes) & 1023);
  const unsigned stages = sharedAddress(aligned);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.x, &maps.weight, &maps.y}) prefetchMap(*map);
    const unsigned warps = work.cluster_features * work.cluster_tokens * kGroups * kWarpgroup / kWarpSize;
    for (int stage = 0; stage < S::kStages; ++stage) {
      barrierInit(&barriers.full[stage], 1);
      barrierInit(&barriers.empty[stage], warps);
    }
    for (auto& group : barriers.residual) {
      for (uint64_t& barrier : group) barrierInit(&barrier, 1);
    }
    fenceBarrierInit();
    fenceSharedForWgmma();
  }
  clusterSync();
  releaseNextGrid();
  const Position at(work);
  if (threadIdx.x < kWarpgroup) {
    shrinkRegisters<40>();
    if (threadIdx.x == 0) fetch<kTokens>(work, maps, at, barriers, stages);
  } else {
    growRegisters<232>();
    waitForPriorGrids();
    Consumer<T, kTokens>(work, maps, barriers, stages, aligned + S::kStages * S::kStageBytes).run(at);
    if (threadIdx.x % kWarpgroup == 0) waitStoresRead<0>();
  }
  __syncwarp();
  clusterSync();  // no block leaves while another may still write to it
#endif
}

// Features along the rows of W and y, the reduction along those of x: always the tensor's contiguous axis first.
bool encodeMaps(const LinearParams& p, const LinearTile& tile, Maps& maps) {
  const auto width = [](int columns) { return static_cast<uint64_t>(columns); };
  const auto encode = [&](CUtensorMap& map, const void* data, int rows, int columns, int box_rows) {
    return encodeMatrix(map, p.type, data, width(rows), width(columns), box_rows, kPanelColumns);
  };
  maps.residual = {};
  return encode(maps.x, p.x, p.T, p.K, tile.tokens / tile.cluster_features) &&
         encode(maps.weight, p.weight, p.K, p.N, kDepth) && encode(maps.y, p.y, p.T, p.N, kBoxTokens) &&
         (!p.residual || encode(maps.residual, p.residual, p.T, p.N, kBoxTokens));
}

template <typename T, int kTokens>
cudaError_t launch(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
  using S = Shape<kTokens>;
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  const auto kernel = linearSm90Kernel<T, kTokens>;
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  }
  if (status != cudaSuccess) return status;

  Maps maps;
  if (!encodeMaps(p, tile, maps)) return cudaErrorInvalidValue;
  Work work{};
  work.bias = p.bias;
  work.N = p.N;
  work.blocks = ceilDiv(p.K, kDepth);
  work.activation = p.activation;
  work.residual = p.residual != nullptr;
  work.cluster_features = tile.cluster_features;
  work.cluster_tokens = tile.cluster_tokens;
  work.feature_clusters = ceilDiv(p.N, kLinearFeatures * tile.cluster_features);
  work.clusters = work.feature_clusters * ceilDiv(p.T, kTokens * tile.cluster_tokens);

  const int cluster_size = tile.cluster_features * tile.cluster_tokens;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster_size), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = std::min(work.clusters, multiprocessors / cluster_size) * cluster_size;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = overlapsLaunches() ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, work, maps);
}

template <typename T>
cudaError_t launchTile(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
  switch (tile.tokens) {
    case 16:
      return launch<T, 16>(p, tile, stream);
    case 32:
      return launch<T, 32>(p, tile, stream);
    case 48:
      return launch<T, 48>(p, tile, stream);
    case 64:
      return launch<T, 64>(p, tile, stream);
    case 80:
      return launch<T, 80>(p, tile, stream);
    case 96:
      return launch<T, 96>(p, tile, stream);
    case 112:
      return launch<T, 112>(p, tile, stream);
    case 128:
      return launch<T, 128>(p, tile, stream);
    case 144:
      return launch<T, 144>(p, tile, stream);
    case 160:
      return launch<T, 160>(p, tile, stream);
    case 176:
      return launch<T, 176>(p, tile, stream);
    case 192:
      return launch<T, 192>(p, tile, stream);
    case 208:
      return launch<T, 208>(p, tile, stream);
    case 224:
      return launch<T, 224>(p, tile, stream);
    case 240:
      return launch<T, 240>(p, tile, stream);
    case 256:
      return launch<T, 256>(p, tile, stream);
  }
  return cudaErrorInvalidValue;
}

bool isAligned16(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace

cudaError_t launchLinearSm90(const LinearParams& p, const LinearTile& tile, cudaStream_t stream) {
  if (p.T <= 0 || p.N <= 0) return cudaSuccess;
  if (p.K <= 0 || p.K % 8 != 0 || p.N % 8 != 0) return cudaErrorInvalidValue;
  for (const void* data : {p.x, p.weight, p.residual, static_cast<const void*>(p.y)}) {
    if (!isAligned16(data)) return cudaErrorMisalignedAddress;
  }
  if (p.type == DataType::kFloat16) return launchTile<half>(p, tile, stream);
  if (p.type == DataType::kBFloat16) return launchTile<__nv_bfloat16>(p, tile, stream);
  return cudaErrorInvalidValue;
}

}  // namespace padfree
