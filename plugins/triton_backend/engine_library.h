// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_abi.h"
#include "triton_backend/metadata.h"

namespace padfree {

// The library that runs plans; it stays open as long as the backend exists.
class EngineLibrary {
 public:
  // Throws Failure if the file cannot be loaded, or is not of this version.
  explicit EngineLibrary(const std::string& path);

  const PadfreeEngineApi& api() const { return *api_; }

 private:
  const PadfreeEngineApi* api_;
};

struct EngineOptions {
  std::string plan;
  int32_t device;  // -1: a CPU
  bool allow_other_gpu;
  bool cuda_graphs;
};

// A plan on a device. All functions throw Failure, with the engine's reason.
class Engine {
 public:
  Engine(const EngineLibrary& library, const Metadata& metadata, const EngineOptions& options);
  ~Engine() { api_.close(handle_); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void read(void* destination, const void* source, int64_t bytes) const;

 private:
  friend class Lane;

  const PadfreeEngineApi& api_;
  PadfreeEngine* handle_;
};

// One run at a time; engine_abi.h says what its functions do.
class Lane {
 public:
  explicit Lane(std::shared_ptr<Engine> engine);
  ~Lane() { api_.close_lane(handle_); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // inputs: must have an entry for each input of the metadata.
  void arrange(const PadfreeSizes& sizes, std::vector<void*>& inputs);
  void copyIn(size_t input, int64_t offset, const void* source, int64_t bytes);
  void start(const bool* to_host);
  void wait();
  const char* output(size_t output) const;
  void copyOut(size_t output, int64_t offset, void* destination, int64_t bytes);
  void zeroOut(void* destination, int64_t bytes);
  void finishCopies();
  void settle();

 private:
  const std::shared_ptr<Engine> engine_;
  const PadfreeEngineApi& api_;
  PadfreeLane* handle_;
};

}  // namespace padfree
