// SPDX-License-Identifier: Apache-2.0
// The interface between libtriton_padfree.so, which handles Triton's requests, and a library that runs a plan.
// libpadfree_engine.so is that library on a GPU; the tests have one for the host. Both are compiled alike: objects of
// the standard library and its exceptions pass between them.
//
// A lane is used by one thread at a time, an engine by several: they may read, and use different lanes of it. Functions
// that fail throw std::exception, with the reason.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace padfree {

constexpr uint32_t kPadfreeEngineAbi = 2;

// What the rows of a tensor stand for. The sizes of a run say how many there are; kPadfreeOnce is one for the run.
enum PadfreeRows : int32_t { kPadfreeTokens = 0, kPadfreeSequences = 1, kPadfreeSlots = 2, kPadfreeOnce = 3 };

enum PadfreeType : int32_t {
  kPadfreeFloat32 = 0,
  kPadfreeFloat16 = 1,
  kPadfreeBFloat16 = 2,
  kPadfreeInt32 = 3,
  kPadfreeInt64 = 4,
  kPadfreeBool = 5
};

struct PadfreeTensor {
  std::string name;
  PadfreeRows rows;
  PadfreeType type;
  std::vector<int64_t> trailing;  // sizes after the axis of the rows
  int64_t row_bytes;
};

struct PadfreeSizes {
  int64_t tokens, sequences, slots;
};

// The plan to open, as the metadata next to it describe it.
struct PadfreePlan {
  std::string path;
  std::string tensorrt;            // the version that built it, such as "10.6.0"
  std::string compute_capability;  // that of the GPU that it was built on, such as "9.0"
  std::string gpu_name;
  bool has_plugins;
  bool allow_other_gpu;  // one with another name; the compute capability has to be the same
  bool cuda_graphs;
  int32_t device;  // -1: a CPU
  PadfreeSizes most;
  std::vector<PadfreeTensor> inputs, outputs;
};

// What one run at a time needs: a stream, staging memory, contexts. Its destructor waits for its run.
class Lane {
 public:
  virtual ~Lane() = default;

  // A run in four steps: arrange, (copyIn), start, wait. inputs[i]: host memory for the rows of input i, to be written
  // before start; its content is undefined.
  virtual void arrange(const PadfreeSizes& sizes, void** inputs) = 0;
  // Takes bytes of an input from device memory instead, which must not change until wait has returned.
  virtual void copyIn(size_t input, int64_t offset, const void* source, int64_t bytes) = 0;
  // to_host[i]: whether output i is wanted in host memory.
  virtual void start(const bool* to_host) = 0;
  virtual void wait() = 0;

  // The results of the run that was waited for, available until settle or the next arrange. output: host memory, or
  // null if it was not wanted there. Destinations of copyOut and zeroOut are in host or device memory, and are filled
  // once finishCopies has returned.
  virtual const char* output(size_t number) const = 0;
  virtual void copyOut(size_t output, int64_t offset, void* destination, int64_t bytes) = 0;
  virtual void zeroOut(void* destination, int64_t bytes) = 0;
  virtual void finishCopies() = 0;
  // Says that the run's results have been taken: the lane may prepare later runs while nobody waits for it.
  virtual void settle() noexcept = 0;
};

// A deserialised plan on one device. Its lanes must be gone before it.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::unique_ptr<Lane> openLane() = 0;
  // Copies device memory to host memory; the copy is complete when it returns.
  virtual void read(void* destination, const void* source, int64_t bytes) const = 0;
};

struct PadfreeEngineApi {
  uint32_t abi;  // kPadfreeEngineAbi

  std::unique_ptr<Engine> (*open)(const PadfreePlan& plan);
};

// The one function that a library exports.
using PadfreeEngineApiFunction = const PadfreeEngineApi*();
constexpr const char* kPadfreeEngineApiName = "padfree_engine_api";

}  // namespace padfree
