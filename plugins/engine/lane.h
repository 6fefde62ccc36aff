// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/graph_cache.h"

namespace padfree::engine {

// Where the tensors of a run are: bytes from the start of a block that holds inputs, outputs, and TensorRT's
// activations.
struct Placement {
  std::vector<size_t> inputs, outputs;
  size_t outputs_start, scratch_start, scratch_bytes;

  size_t bytes() const { return scratch_start + scratch_bytes; }
};

// A context that has been set to some sizes.
struct Arranged {
  std::unique_ptr<TensorRtContext> context;
  PadfreeSizes sizes{};
  Placement placement{};
};

struct Captured {
  Arranged arranged;  // holds the context that it was captured from, which must not be destroyed
  Graph graph;
};

using SizesKey = std::array<int64_t, 3>;

}  // namespace padfree::engine

// Runs an engine, one run at a time: a stream, one block of GPU memory and pinned memory for the largest run, a context
// for any sizes, and CUDA graphs for sizes that come repeatedly.
//
// TensorRT's advice on CUDA graphs is followed: a plain run comes before every capture, every graph keeps a context of
// its own, and all of them share the block.
struct PadfreeLane {
  explicit PadfreeLane(PadfreeEngine& owner);
  ~PadfreeLane();

  void arrange(const PadfreeSizes& sizes, void** inputs);
  void copyIn(int32_t input, int64_t offset, const void* source, int64_t bytes);
  void start(const bool* to_host);
  void wait();
  const void* output(int32_t number) const;
  void copyOut(int32_t number, int64_t offset, void* destination, int64_t bytes);
  void zeroOut(void* destination, int64_t bytes);
  void finishCopies();
  void settle();

 private:
  struct DeviceCopy {
    size_t offset;
    const void* source;
    size_t bytes;
  };

  PadfreeSizes bucketOf(const PadfreeSizes& sizes) const;
  void choose(const PadfreeSizes& sizes);
  void set(padfree::engine::Arranged& arranged, const PadfreeSizes& sizes);
  padfree::engine::Placement place(padfree::engine::TensorRtContext& context, const PadfreeSizes& sizes) const;
  void bind(padfree::engine::Arranged& arranged);
  void zeroFiller();
  void upload();
  void download(const bool* to_host);
  void captureRun();

  PadfreeEngine& owner_;
  padfree::engine::Stream stream_;
  padfree::engine::Arranged plain_;
  std::unique_ptr<padfree::engine::Memory> block_, staging_in_, staging_out_;
  padfree::engine::GraphCache<padfree::engine::SizesKey, padfree::engine::Captured> graphs_;
  bool captures_;

  // The run that was arranged last.
  PadfreeSizes sizes_{};
  padfree::engine::Captured* replayed_ = nullptr;
  std::unique_ptr<padfree::engine::Arranged> first_;  // a plain run whose sizes get a graph after it
  const padfree::engine::Arranged* current_ = nullptr;
  std::vector<DeviceCopy> device_copies_;
  std::vector<bool> to_host_;
};
