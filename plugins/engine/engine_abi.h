// SPDX-License-Identifier: Apache-2.0
// The interface between libtriton_padfree.so, which handles Triton's requests, and a library that runs a plan.
// libpadfree_engine.so is that library on a GPU; the tests have one for the host.
//
// A handle is used by one thread at a time; different handles may be used by different threads. Nothing throws:
// functions that fail return false or null, with the reason in PadfreeError.
#pragma once

#include <cstdint>

extern "C" {

struct PadfreeEngine;  // a deserialised plan on one device
struct PadfreeLane;    // what one run at a time needs: a stream, staging memory, contexts

constexpr uint32_t kPadfreeEngineAbi = 1;

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

struct PadfreeError {
  char text[1024];
};

struct PadfreeTensor {
  const char* name;
  PadfreeRows rows;
  PadfreeType type;
  int32_t trailing_count;  // number of axes after that of the rows
  const int64_t* trailing;
};

// The plan to open, as the metadata next to it describe it. Pointers are read only during the call.
struct PadfreePlan {
  const char* path;
  const char* tensorrt;            // the version that built it, such as "10.6.0"
  const char* compute_capability;  // that of the GPU that it was built on, such as "9.0"
  const char* gpu_name;
  bool has_plugins;
  bool allow_other_gpu;  // one with another name; the compute capability has to be the same
  bool cuda_graphs;
  int32_t device;  // -1: a CPU
  int64_t max_tokens, max_sequences, max_slots;
  int32_t input_count, output_count;
  const PadfreeTensor* inputs;
  const PadfreeTensor* outputs;
};

struct PadfreeSizes {
  int64_t tokens, sequences, slots;
};

struct PadfreeEngineApi {
  uint32_t abi;  // kPadfreeEngineAbi

  PadfreeEngine* (*open)(const PadfreePlan* plan, PadfreeError* error);
  void (*close)(PadfreeEngine* engine);  // after all its lanes
  PadfreeLane* (*open_lane)(PadfreeEngine* engine, PadfreeError* error);
  void (*close_lane)(PadfreeLane* lane);  // waits for its run

  // A run in four steps: arrange, (copy_in), start, wait. inputs[i]: host memory for the rows of input i, to be written
  // before start; its content is undefined.
  bool (*arrange)(PadfreeLane* lane, const PadfreeSizes* sizes, void** inputs, PadfreeError* error);
  // Takes bytes of an input from device memory instead, which must not change until wait has returned.
  bool (*copy_in)(PadfreeLane* lane, int32_t input, int64_t offset, const void* source, int64_t bytes,
                  PadfreeError* error);
  // to_host[i]: whether output i is wanted in host memory.
  bool (*start)(PadfreeLane* lane, const bool* to_host, PadfreeError* error);
  bool (*wait)(PadfreeLane* lane, PadfreeError* error);

  // The results of the run that was waited for, available until settle or the next arrange. output: host memory, or
  // null if it was not wanted there. Destinations of copy_out and zero_out are in host or device memory, and are filled
  // once finish_copies has returned.
  const void* (*output)(PadfreeLane* lane, int32_t output);
  bool (*copy_out)(PadfreeLane* lane, int32_t output, int64_t offset, void* destination, int64_t bytes,
                   PadfreeError* error);
  bool (*zero_out)(PadfreeLane* lane, void* destination, int64_t bytes, PadfreeError* error);
  bool (*finish_copies)(PadfreeLane* lane, PadfreeError* error);
  // Says that the run's results have been taken: the lane may prepare later runs while nobody waits for it.
  void (*settle)(PadfreeLane* lane);

  // Copies device memory to host memory; the copy is complete when it returns.
  bool (*read)(PadfreeEngine* engine, void* destination, const void* source, int64_t bytes, PadfreeError* error);
};

// The one function that a library exports.
using PadfreeEngineApiFunction = const PadfreeEngineApi*();
constexpr const char* kPadfreeEngineApiName = "padfree_engine_api";

}  // extern "C"
