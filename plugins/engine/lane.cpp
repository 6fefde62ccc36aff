// SPDX-License-Identifier: Apache-2.0
#include "engine/lane.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "common/text.h"
#include "engine/sizes.h"

namespace padfree::engine {
namespace {

constexpr size_t kAlignment = 512;  // bytes, for tensors in a block; TensorRT asks for 256

size_t aligned(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

SizesKey keyOf(const PadfreeSizes& sizes) {
  return {sizes.tokens, sizes.sequences, sizes.slots};
}

Dims shapeOf(const PadfreeTensor& tensor, const PadfreeSizes& sizes) {
  Dims shape = {rowsOf(sizes, tensor.rows)};
  shape.insert(shape.end(), tensor.trailing.begin(), tensor.trailing.end());
  return shape;
}

size_t bytesOf(const PadfreeTensor& tensor, const PadfreeSizes& sizes) {
  return static_cast<size_t>(rowsOf(sizes, tensor.rows) * tensor.row_bytes);
}

}  // namespace

DeviceLane::DeviceLane(const DeviceEngine& owner) : owner_(owner), captures_(owner.plan.cuda_graphs) {
  plain_.context = owner_.engine->newContext();
  set(plain_, owner_.plan.most);
  const Placement& largest = plain_.placement;
  block_ = std::make_unique<Memory>(Memory::Kind::kDevice, largest.bytes());
  staging_in_ = std::make_unique<Memory>(Memory::Kind::kPinned, largest.outputs_start);
  staging_out_ = std::make_unique<Memory>(Memory::Kind::kPinned, largest.scratch_start - largest.outputs_start);
}

DeviceLane::~DeviceLane() {
  try {
    owner_.device.makeCurrent();
    stream_.synchronize();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "padfree: a lane is closed after an error: %s\n", error.what());
  }
}

void DeviceLane::arrange(const PadfreeSizes& sizes, void** inputs) {
  owner_.device.makeCurrent();
  if (first_ != nullptr) captureRun();  // the previous run failed, and was not settled
  device_copies_.clear();
  sizes_ = sizes;
  choose(sizes);
  for (size_t i = 0; i < owner_.plan.inputs.size(); ++i)
    inputs[i] = staging_in_->data() + current_->placement.inputs[i];
}

PadfreeSizes DeviceLane::bucketOf(const PadfreeSizes& sizes) const {
  return {tokenBucket(sizes.tokens, owner_.plan.most.tokens),
          sequenceBucket(sizes.sequences, owner_.plan.most.sequences), slotBucket(sizes.slots, owner_.plan.most.slots)};
}

// Chooses a graph for these sizes, the plain run before a capture, or a plain run in exactly these sizes.
void DeviceLane::choose(const PadfreeSizes& sizes) {
  replayed_ = nullptr;
  if (captures_) {
    PadfreeSizes bucket = bucketOf(sizes);
    const bool has_slots = std::any_of(owner_.plan.inputs.begin(), owner_.plan.inputs.end(),
                                       [](const PadfreeTensor& input) { return input.rows == kPadfreeSlots; });
    if (!has_slots) bucket.slots = 0;  // no shape depends on it
    const SizesKey key = keyOf(bucket);
    replayed_ = graphs_.get(key);
    Captured* larger = replayed_ == nullptr ? graphs_.getLarger(key) : nullptr;
    if (replayed_ == nullptr && graphs_.isWorth(key, larger != nullptr)) {
      auto arranged = std::make_unique<Arranged>();
      arranged->context = owner_.engine->newContext();
      set(*arranged, bucket);
      bind(*arranged);
      first_ = std::move(arranged);
      current_ = first_.get();
      return;
    }
    if (replayed_ == nullptr) replayed_ = larger;
    if (replayed_ != nullptr) {
      current_ = &replayed_->arranged;
      return;
    }
  }
  set(plain_, sizes);
  bind(plain_);
  current_ = &plain_;
}

void DeviceLane::set(Arranged& arranged, const PadfreeSizes& sizes) {
  if (!arranged.placement.inputs.empty() && keyOf(arranged.sizes) == keyOf(sizes)) return;
  arranged.placement = {};  // unknown in case the next line throws
  arranged.placement = place(*arranged.context, sizes);
  arranged.sizes = sizes;
}

Placement DeviceLane::place(TensorRtContext& context, const PadfreeSizes& sizes) const {
  Placement placement{};
  size_t at = 0;
  for (const PadfreeTensor& input : owner_.plan.inputs) {
    context.setShape(input.name.c_str(), shapeOf(input, sizes));
    placement.inputs.push_back(at);
    at += aligned(bytesOf(input, sizes));
  }
  context.inferShapes();
  placement.outputs_start = at;
  for (const PadfreeTensor& output : owner_.plan.outputs) {
    if (context.shape(output.name.c_str()) != shapeOf(output, sizes)) {
      throwError("output '" + output.name +
                 "' has another shape than its metadata says; the metadata belongs to another "
                 "plan: copy both files of one build");
    }
    placement.outputs.push_back(at);
    at += aligned(bytesOf(output, sizes));
  }
  placement.scratch_start = at;
  placement.scratch_bytes = context.scratchBytes();
  return placement;
}

// Tells TensorRT where everything is. If the block has become too small, it is replaced and all graphs are dropped.
void DeviceLane::bind(Arranged& arranged) {
  const Placement& placement = arranged.placement;
  if (placement.bytes() > block_->bytes()) {
    graphs_.clear();
    block_.reset();
    block_ = std::make_unique<Memory>(Memory::Kind::kDevice, placement.bytes());
  }
  for (size_t i = 0; i < owner_.plan.inputs.size(); ++i) {
    arranged.context->setAddress(owner_.plan.inputs[i].name.c_str(), block_->data() + placement.inputs[i]);
  }
  for (size_t i = 0; i < owner_.plan.outputs.size(); ++i) {
    arranged.context->setAddress(owner_.plan.outputs[i].name.c_str(), block_->data() + placement.outputs[i]);
  }
  arranged.context->setScratch(block_->data() + placement.scratch_start, placement.scratch_bytes);
}

void DeviceLane::copyIn(size_t input, int64_t offset, const void* source, int64_t bytes) {
  const size_t at = current_->placement.inputs[input] + static_cast<size_t>(offset);
  device_copies_.push_back({at, source, static_cast<size_t>(bytes)});
}

void DeviceLane::start(const bool* to_host) {
  owner_.device.makeCurrent();
  zeroFiller();
  upload();
  if (replayed_ != nullptr) {
    replayed_->graph.launch(stream_.handle());
  } else {
    current_->context->enqueue(stream_.handle());
  }
  download(to_host);
}

// Zeroes the filler tokens and empty sequences at the end, if the sizes were rounded up.
void DeviceLane::zeroFiller() {
  for (size_t i = 0; i < owner_.plan.inputs.size(); ++i) {
    const size_t used = bytesOf(owner_.plan.inputs[i], sizes_), whole = bytesOf(owner_.plan.inputs[i], current_->sizes);
    if (used < whole) std::memset(staging_in_->data() + current_->placement.inputs[i] + used, 0, whole - used);
  }
}

// One copy for all inputs; those that callers have on the GPU are then copied over it.
void DeviceLane::upload() {
  stream_.copy(block_->data(), staging_in_->data(), current_->placement.outputs_start);
  for (const DeviceCopy& copy : device_copies_) stream_.copy(block_->data() + copy.offset, copy.source, copy.bytes);
}

// One copy of everything from the first output that is wanted on the host to the last.
void DeviceLane::download(const bool* to_host) {
  const Placement& placement = current_->placement;
  to_host_.assign(to_host, to_host + owner_.plan.outputs.size());
  size_t start = placement.scratch_start, end = 0;
  for (size_t i = 0; i < owner_.plan.outputs.size(); ++i) {
    if (!to_host[i]) continue;
    start = std::min(start, placement.outputs[i]);
    end = std::max(end, placement.outputs[i] + bytesOf(owner_.plan.outputs[i], sizes_));
  }
  if (end > start) {
    stream_.copy(staging_out_->data() + (start - placement.outputs_start), block_->data() + start, end - start);
  }
}

void DeviceLane::wait() {
  owner_.device.makeCurrent();
  stream_.synchronize();
}

void DeviceLane::settle() noexcept {
  try {
    owner_.device.makeCurrent();
    if (first_ != nullptr) captureRun();
  } catch (const std::exception&) {  // the next run reports what is wrong
  }
}

// Takes as long as hundreds of runs, so it is called after the run before it has been answered.
void DeviceLane::captureRun() {
  const auto arranged = std::move(first_);
  current_ = nullptr;
  try {
    stream_.synchronize();
    CUgraph graph = stream_.capture([&] { arranged->context->enqueue(stream_.handle()); });
    const SizesKey key = keyOf(arranged->sizes);
    graphs_.put(key, std::unique_ptr<Captured>(new Captured{std::move(*arranged), Graph(graph)}));
  } catch (const std::exception& error) {
    captures_ = false;
    std::fprintf(stderr, "padfree: no CUDA graphs for this lane, runs stay plain: %s\n", error.what());
  }
}

const char* DeviceLane::output(size_t number) const {
  if (!to_host_[number]) return nullptr;
  return staging_out_->data() + (current_->placement.outputs[number] - current_->placement.outputs_start);
}

void DeviceLane::copyOut(size_t number, int64_t offset, void* destination, int64_t bytes) {
  owner_.device.makeCurrent();
  stream_.copy(destination, block_->data() + current_->placement.outputs[number] + offset, static_cast<size_t>(bytes));
}

void DeviceLane::zeroOut(void* destination, int64_t bytes) {
  owner_.device.makeCurrent();
  stream_.zero(destination, static_cast<size_t>(bytes));
}

void DeviceLane::finishCopies() {
  owner_.device.makeCurrent();
  stream_.synchronize();
}

}  // namespace padfree::engine
