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

// Runs an engine, one run at a time: a stream, one block of GPU memory and pinned memory for the largest run, a context
// for any sizes, and CUDA graphs for sizes that come repeatedly.
//
// TensorRT's advice on CUDA graphs is followed: a plain run comes before every capture, every graph keeps a context of
// its own, and all of them share the block.
class DeviceLane final : public Lane {
 public:
  explicit DeviceLane(const DeviceEngine& owner);
  ~DeviceLane() override;

  void arrange(const PadfreeSizes& sizes, void** inputs) override;
  void copyIn(size_t input, int64_t offset, const void* source, int64_t bytes) override;
  void start(const bool* to_host) override;
  void wait() override;
  const char* output(size_t number) const override;
  void copyOut(size_t number, int64_t offset, void* destination, int64_t bytes) override;
  void zeroOut(void* destination, int64_t bytes) override;
  void finishCopies() override;
  void settle() noexcept override;

 private:
  struct DeviceCopy {
    size_t offset;
    const void* source;
    size_t bytes;
  };

  PadfreeSizes bucketOf(const PadfreeSizes& sizes) const;
  void choose(const PadfreeSizes& sizes);
  void set(Arranged& arranged, const PadfreeSizes& sizes);
  Placement place(TensorRtContext& context, const PadfreeSizes& sizes) const;
  void bind(Arranged& arranged);
  void zeroFiller();
  void upload();
  void download(const bool* to_host);
  void captureRun();

  const DeviceEngine& owner_;
  Stream stream_;
  Arranged plain_;
  std::unique_ptr<Memory> block_, staging_in_, staging_out_;
  GraphCache<SizesKey, Captured> graphs_;
  bool captures_;

  // The run that was arranged last.
  PadfreeSizes sizes_{};
  Captured* replayed_ = nullptr;
  std::unique_ptr<Arranged> first_;  // a plain run whose sizes get a graph after it
  const Arranged* current_ = nullptr;
  std::vector<DeviceCopy> device_copies_;
  std::vector<bool> to_host_;
};

}  // namespace padfree::engine
