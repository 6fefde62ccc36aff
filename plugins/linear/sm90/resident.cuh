// SPDX-License-Identifier: Apache-2.0
// The GEMM for Hopper where a tile's input fits in shared memory over the whole reduction: it is fetched once,
// only weights pass through the ring, and two warpgroups take tiles of 64 features in ping-pong. One is in its
// epilogue while the other has the tensor cores, which is what short reductions need: their epilogues take as long as
// their main loops.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/device.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/wgmma.cuh"
#include "linear/sm90/collective_epilogue.cuh"
#include "linear/sm90/moments.cuh"

namespace padfree {

// A block's range of tiles of features with its tokens; those of a cluster that differ in `feature` have other ranges
// of the same tokens, which they fetch together, those that differ in `token` the same range of other tokens.
struct FeatureRange {
  int begin, end, token;
  __device__ FeatureRange(const Work& work, const BlockCoord& coord, int cluster, int tokens)
      : begin(BlockCoord::rangeBegin(work, coord.featureTile(work, cluster))),
        end(BlockCoord::rangeBegin(work, coord.featureTile(work, cluster) + 1)),
        token(coord.tokenTile(work, cluster) * tokens) {}
};

// Returns when all blocks with the same features have left all stages, for the reason that fetchWeight has.
template <typename Operands, typename S>
__device__ void fetchResidentWeight(const Work& work, const typename Operands::Maps& maps, const BlockCoord& coord,
                                    ResidentBarriers& barriers, unsigned ring_address) {
  const typename Operands::template Share<1> share(coord.token, work.tiling.cluster_tokens);
  const auto blocks = static_cast<uint16_t>(work.same_features << coord.feature);
  Ring ring(work.ring_stages);
  for (int cluster = coord.first; cluster < work.clusters; cluster += coord.step) {
    const FeatureRange range(work, coord, cluster, S::kTokens);
    for (int tile = range.begin; tile < range.end; ++tile) {
#pragma unroll 1
      for (int i = 0; i < work.stages; ++i, ring.advance()) {
        uint64_t* const full = &barriers.full[ring.stage];
        barrierWait(&barriers.empty[ring.stage], ring.parity ^ 1);
        barrierExpect(full, S::kStageBytes);
        share.fetch(maps, ring_address + ring.stage * S::kStageBytes, tile * kGroupFeatures, i * Operands::depth, full,
                    blocks);
      }
    }
  }
  waitForPriorGrids();
  releaseNextGrid();  // not earlier: its blocks would occupy multiprocessors and fetch while this grid still multiplies
  for (int i = 0; i < work.ring_stages; ++i, ring.advance()) barrierWait(&barriers.empty[ring.stage], ring.parity ^ 1);
}

// The same for the input, which is released once per range.
template <typename Operands, typename S>
__device__ void fetchResidentInput(const Work& work, const Maps& maps, const BlockCoord& coord,
                                   ResidentBarriers& barriers, unsigned input_address) {
  const int tokens = S::kTokens / work.tiling.cluster_features;  // this block's, for its cluster
  const int first = coord.feature * tokens;
  const auto blocks =
      static_cast<uint16_t>(((1u << work.tiling.cluster_features) - 1) << (coord.token * work.tiling.cluster_features));
  unsigned parity = 1;
  waitForPriorGrids();
  for (int cluster = coord.first; cluster < work.clusters; cluster += coord.step, parity ^= 1) {
    const int token = coord.tokenTile(work, cluster) * S::kTokens + first;
#pragma unroll 1
    for (int i = 0; i < work.stages; ++i) {
      barrierWait(&barriers.input_empty[i], parity);
      barrierExpect(&barriers.input_full[i], S::kInputBytes);
      copyBox(input_address + i * S::kInputBytes + first * kPanelRowBytes, maps.x, i * Operands::depth, token,
              &barriers.input_full[i], blocks);
    }
  }
  for (int i = 0; i < work.stages; ++i) barrierWait(&barriers.input_empty[i], parity);
}

template <typename Operands, typename S, typename Epilogue>
class ResidentConsumer : CollectiveEpilogue<Operands, S, Epilogue> {
  using Base = CollectiveEpilogue<Operands, S, Epilogue>;
  using Base::epilogue_, Base::group_, Base::in_group_, Base::kTokens, Base::lane_, Base::sums_, Base::work_;
  using typename Base::Features, typename Base::Maps, typename Base::Results;
  static constexpr int kPingPongBarrier = kGroups + 1;  // one for each warpgroup, after as many others

 public:
  __device__ ResidentConsumer(const Work& work, const Maps& maps, const BlockCoord& coord, ResidentBarriers& barriers,
                              unsigned input_address, unsigned ring_address, unsigned char* out,
                              const ScaleOf<Epilogue>* scales)
      : Base(work, maps, out, scales),
        barriers_(barriers),
        input_address_(input_address),
        ring_descriptor_(keepInRegister(panelDescriptor(ring_address))),
        full_(keepInRegister(sharedAddress(barriers.full))),
        input_full_(keepInRegister(sharedAddress(barriers.input_full))),
        empty_(addressAt(sharedAddress(barriers.empty), coord.feature + (lane_ << work.features_shift))),
        input_empty_(addressAt(sharedAddress(barriers.input_empty), (coord.token << work.features_shift) + lane_)),
        ring_(work.ring_stages) {}

  __device__ void run(const BlockCoord& coord) {
    bool is_mine = group_ == 0;
    unsigned parity = 0;  // of the range
    for (int cluster = coord.first; cluster < work_.clusters; cluster += coord.step, parity ^= 1) {
      const FeatureRange range(work_, coord, cluster, kTokens);
      const bool is_last_range = cluster + coord.step >= work_.clusters;
      if (range.end - range.begin == 1 && !is_mine) releaseAll(parity);
      for (int tile = range.begin; tile < range.end; ++tile, is_mine = !is_mine) {
        if (!is_mine) {
          ring_.skip(work_.stages);
          continue;
        }
        const bool is_first = tile < range.begin + kGroups, is_last = tile + kGroups >= range.end;
        const bool is_followed = tile + 1 < range.end || !is_last_range;
        const int feature = tile * kGroupFeatures;
        const Features features =
            this->loadFeatures(feature + this->warp() * 16 + Results::firstFeature(lane_), range.token);
        if (waits_for_other_) namedBarrier(kPingPongBarrier + group_, kGroups * kWarpgroup);
        multiply(is_first, is_last, is_followed, parity);
        if (epilogue_.normed && is_first) barrierWait(&barriers_.scales.full, parity);
        this->epilogueInChunks(coord, feature, range.token, features);
        waits_for_other_ = true;
        __syncwarp();
        if (epilogue_.normed && is_last && lane_ == 0) barrierArrive(&barriers_.scales.empty);
      }
    }
    if (in_group_ == 0) waitStoresRead<0>();
  }

 private:
  // Sums the tile's products. The other warpgroup may begin as soon as all of them are issued. Matrix
  // instructions are issued by halves of a stage: the tensor cores have two ahead, and what comes between halves must
  // not take longer than these.
  __device__ void multiply(bool is_first, bool is_last, bool is_followed, unsigned parity) {
    constexpr int kHalf = Operands::steps / 2;
    unsigned b_low = panelDescriptor(input_address_), input_full = input_full_, stage_barrier = 0,
             input_barrier = input_empty_;
    const auto waitForStage = [&] {
      if (is_first) barrierWaitAt(input_full, parity);
      barrierWaitAt(full_ + ring_.stage * sizeof(uint64_t), ring_.parity);
    };
    waitForStage();
#pragma unroll 1
    for (int i = 0; i < work_.stages; ++i) {
      const uint64_t a = fullDescriptor(ring_descriptor_ + ring_.stage * (S::kStageBytes >> 4));
      const uint64_t b = fullDescriptor(b_low);
      wgmmaFence();
      Operands::template multiply<kTokens, 0, kHalf>(sums_, a, b, i > 0);
      wgmmaCommit();
      wgmmaWait<1>();
      if (i > 0) release(stage_barrier, input_barrier, is_last);
      wgmmaFence();
      Operands::template multiply<kTokens, kHalf, Operands::steps>(sums_, a, b, true);
      wgmmaCommit();
      if (i > 0) input_barrier += sizeof(uint64_t);
      stage_barrier = empty_ + ring_.stage * sizeof(uint64_t);
      b_low += S::kInputBytes >> 4;
      input_full += sizeof(uint64_t);
      ring_.advance();
      if (i + 1 < work_.stages) waitForStage();
    }
    if (is_followed) namedArrive(kPingPongBarrier + 1 - group_, kGroups * kWarpgroup);
    wgmmaWait<0>();
    release(stage_barrier, input_barrier, is_last);
  }

  // Tells the blocks that fetch together that this warp has left a stage of weights and, with the range's last tile, of
  // input. Each lane tells one block, whose barriers have these addresses in the cluster.
  __device__ void release(unsigned stage, unsigned input, bool is_last) {
    if (lane_ < work_.tiling.cluster_tokens) barrierArriveAt(stage);
    if (is_last && lane_ < work_.tiling.cluster_features) barrierArriveAt(input);
  }

  // For a range without a tile for this warpgroup. It waits for what it releases; otherwise it would release what came
  // before.
  __device__ void releaseAll(unsigned parity) {
    for (int i = 0; i < work_.stages; ++i) {
      barrierWait(&barriers_.input_full[i], parity);
      __syncwarp();
      if (lane_ < work_.tiling.cluster_features) barrierArriveAt(input_empty_ + i * sizeof(uint64_t));
    }
    if (!epilogue_.normed) return;
    barrierWait(&barriers_.scales.full, parity);
    __syncwarp();
    if (lane_ == 0) barrierArrive(&barriers_.scales.empty);
  }

  ResidentBarriers& barriers_;
  const unsigned input_address_, ring_descriptor_, full_, input_full_, empty_, input_empty_;
  Ring ring_;
  bool waits_for_other_ = group_ > 0;  // before it multiplies its next tile
};

template <typename Operands, typename S, typename Epilogue>
__global__ void __launch_bounds__(kLinearThreads, 1)
    residentSm90Kernel(const __grid_constant__ Work work, const __grid_constant__ typename Operands::Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  __shared__ ResidentBarriers barriers;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.x, &maps.weight, &maps.y_at_once}) prefetchMap(*map);
    for (int stage = 0; stage < work.ring_stages; ++stage) {
      barrierInit(&barriers.full[stage], 1);
      barrierInit(&barriers.empty[stage], work.tiling.cluster_tokens * kWarps);
    }
    for (int i = 0; i < work.stages; ++i) {
      barrierInit(&barriers.input_full[i], 1);
      barrierInit(&barriers.input_empty[i], work.tiling.cluster_features * kGroups * kWarps);
    }
    barriers.scales.init();
    fenceBarrierInit();
    fenceAsyncProxy();
  }
  clusterSync();
  const BlockCoord coord(work);
  unsigned char* const ring = shared_bytes + work.stages * S::kInputBytes;
  unsigned char* const out = ring + work.ring_stages * S::kStageBytes;
  using Scale = ScaleOf<Epilogue>;
  Scale* const scales = reinterpret_cast<Scale*>(out + S::outBytes(Epilogue::out));
  const unsigned input_address = sharedAddress(shared_bytes), ring_address = sharedAddress(ring);
  if (threadIdx.x < kWarpgroup) {
    shrinkRegisters<56>();
    if (threadIdx.x == 0) fetchResidentWeight<Operands, S>(work, maps, coord, barriers, ring_address);
    if (threadIdx.x == kWarpSize) fetchResidentInput<Operands, S>(work, maps, coord, barriers, input_address);
    const int thread = threadIdx.x - (kWarpgroup - kScaleThreads);
    const Epilogue epilogue(work);
    if (epilogue.normed && thread >= 0) {
      constexpr bool kMayLack = Epilogue::gated || Epilogue::rotates;
      fetchScales<S::kTokens, kMayLack>(work, coord, barriers.scales, scales, thread);
    }
  } else {
    growRegisters<224>();
    waitForPriorGrids();
    ResidentConsumer<Operands, S, Epilogue>(work, maps, coord, barriers, input_address, ring_address, out, scales)
        .run(coord);
  }
#endif
}

}  // namespace padfree
