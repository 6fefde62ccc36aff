// SPDX-License-Identifier: Apache-2.0
// libpadfree_engine.so: the functions of engine_abi.h, implemented with TensorRT and CUDA's driver.
#include <memory>

#include "engine/engine.h"
#include "engine/failure.h"
#include "engine/lane.h"

namespace padfree::engine {
namespace {

// As guarded, for functions that only succeed or fail.
template <class Body>
bool done(PadfreeError* error, Body&& body) noexcept {
  return guarded(error, false, [&] {
    body();
    return true;
  });
}

PadfreeEngine* openEngine(const PadfreePlan* plan, PadfreeError* error) {
  return guarded(error, static_cast<PadfreeEngine*>(nullptr), [&] { return new PadfreeEngine(*plan); });
}

void closeEngine(PadfreeEngine* engine) {
  PadfreeError ignored;
  done(&ignored, [&] { engine->device.makeCurrent(); });
  delete engine;
}

PadfreeLane* openLane(PadfreeEngine* engine, PadfreeError* error) {
  return guarded(error, static_cast<PadfreeLane*>(nullptr), [&] {
    engine->device.makeCurrent();
    return new PadfreeLane(*engine);
  });
}

void closeLane(PadfreeLane* lane) {
  delete lane;
}

bool arrange(PadfreeLane* lane, const PadfreeSizes* sizes, void** inputs, PadfreeError* error) {
  return done(error, [&] { lane->arrange(*sizes, inputs); });
}

bool copyIn(PadfreeLane* lane, int32_t input, int64_t offset, const void* source, int64_t bytes, PadfreeError* error) {
  return done(error, [&] { lane->copyIn(input, offset, source, bytes); });
}

bool start(PadfreeLane* lane, const bool* to_host, PadfreeError* error) {
  return done(error, [&] { lane->start(to_host); });
}

bool wait(PadfreeLane* lane, PadfreeError* error) {
  return done(error, [&] { lane->wait(); });
}

const void* output(PadfreeLane* lane, int32_t number) {
  return lane->output(number);
}

bool copyOut(PadfreeLane* lane, int32_t number, int64_t offset, void* destination, int64_t bytes, PadfreeError* error) {
  return done(error, [&] { lane->copyOut(number, offset, destination, bytes); });
}

bool zeroOut(PadfreeLane* lane, void* destination, int64_t bytes, PadfreeError* error) {
  return done(error, [&] { lane->zeroOut(destination, bytes); });
}

bool finishCopies(PadfreeLane* lane, PadfreeError* error) {
  return done(error, [&] { lane->finishCopies(); });
}

void settle(PadfreeLane* lane) {
  PadfreeError ignored;  // the next run reports what is wrong
  done(&ignored, [&] { lane->settle(); });
}

bool readDevice(PadfreeEngine* engine, void* destination, const void* source, int64_t bytes, PadfreeError* error) {
  return done(error, [&] { engine->read(destination, source, bytes); });
}

constexpr PadfreeEngineApi kApi = {kPadfreeEngineAbi, openEngine, closeEngine,  openLane, closeLane,
                                   arrange,           copyIn,     start,        wait,     output,
                                   copyOut,           zeroOut,    finishCopies, settle,   readDevice};

}  // namespace
}  // namespace padfree::engine

extern "C" __attribute__((visibility("default"))) const PadfreeEngineApi* padfree_engine_api() {
  return &padfree::engine::kApi;
}
