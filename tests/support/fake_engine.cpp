// SPDX-License-Identifier: Apache-2.0
// Stands in for libpadfree_engine.so where there is no GPU: "plans" are text files, and outputs are sums that show
// which values reached which row. Lines of a plan, all optional:
//
//   delay_us 500        how long a run takes
//   fail_value 13       runs in which a token of the first input has this value fail
//   fail_open 1         the plan cannot be opened
//
// Row b of an output with a row per sequence, element e:
//   e + sum over token inputs i (from 1) and positions p of i * (p + 1) * value
//     + sum over inputs j (from 1) per sequence, elements k, of 1000 * j * (k + 1) * value,                modulo 2039
// Row t of an output with a row per token, element e, with the sequence's length and the token's position:
//   e + 3 * length + 7 * position + sum over token inputs i (from 1) of i * value,                         modulo 2039
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_abi.h"

namespace {

constexpr int64_t kModulus = 2039;  // all results are exact in 16 bits of floating point

struct Tensor {
  std::string name;
  PadfreeRows rows;
  PadfreeType type;
  int64_t width;  // numbers in a row

  int64_t rowBytes() const {
    if (type == kPadfreeInt64) return 8 * width;
    if (type == kPadfreeFloat16 || type == kPadfreeBFloat16) return 2 * width;
    return type == kPadfreeBool ? width : 4 * width;
  }
};

std::atomic<int> live_engines{0}, live_lanes{0};

bool fail(PadfreeError* error, const std::string& message) {
  std::snprintf(error->text, sizeof(error->text), "%s", message.c_str());
  return false;
}

Tensor copyOf(const PadfreeTensor& tensor) {
  int64_t width = 1;
  for (int32_t i = 0; i < tensor.trailing_count; ++i) width *= tensor.trailing[i];
  return {tensor.name, tensor.rows, tensor.type, width};
}

// A whole number below 2048 as half precision or bfloat16.
uint16_t toBits(int64_t value, PadfreeType type) {
  const auto number = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  if (type == kPadfreeBFloat16) return static_cast<uint16_t>(bits >> 16);
  if (value == 0) return 0;
  const uint32_t exponent = ((bits >> 23) & 0xff) - 127 + 15;
  return static_cast<uint16_t>((exponent << 10) | ((bits >> 13) & 0x3ff));
}

void store(char* row, int64_t element, int64_t value, PadfreeType type) {
  if (type == kPadfreeInt64) {
    std::memcpy(row + 8 * element, &value, 8);
  } else if (type == kPadfreeInt32) {
    const auto narrow = static_cast<int32_t>(value);
    std::memcpy(row + 4 * element, &narrow, 4);
  } else if (type == kPadfreeFloat32) {
    const auto number = static_cast<float>(value);
    std::memcpy(row + 4 * element, &number, 4);
  } else if (type == kPadfreeBool) {
    row[element] = static_cast<char>(value & 1);
  } else {
    const uint16_t bits = toBits(value, type);
    std::memcpy(row + 2 * element, &bits, 2);
  }
}

int64_t load(const std::vector<char>& values, int64_t index, PadfreeType type) {
  if (type == kPadfreeFloat32) {
    float number = 0;
    std::memcpy(&number, values.data() + 4 * index, 4);
    return static_cast<int64_t>(number);
  }
  int32_t number = 0;
  std::memcpy(&number, values.data() + 4 * index, 4);
  return number;
}

int64_t modulo(int64_t value) {
  return ((value % kModulus) + kModulus) % kModulus;
}

}  // namespace

struct PadfreeEngine {
  std::vector<Tensor> inputs, outputs;
  std::map<std::string, int64_t> settings;
  int64_t max_tokens, max_sequences, max_slots;

  int64_t setting(const char* name) const {
    const auto found = settings.find(name);
    return found == settings.end() ? -1 : found->second;
  }
};

struct PadfreeLane {
  PadfreeEngine* engine;
  PadfreeSizes sizes{};
  std::vector<std::vector<char>> inputs, outputs;
  std::vector<bool> to_host;
  std::chrono::steady_clock::time_point ends;

  std::vector<int64_t> lengths() const {
    std::vector<int64_t> found;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (engine->inputs[i].name != "seq_lens") continue;
      for (int64_t b = 0; b < sizes.sequences; ++b) found.push_back(load(inputs[i], b, kPadfreeInt32));
    }
    return found;
  }

  int64_t ofToken(int64_t token, int64_t factor) const {
    int64_t sum = 0, number = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& input = engine->inputs[i];
      if (input.rows != kPadfreeTokens) continue;
      ++number;
      for (int64_t k = 0; k < input.width; ++k) {
        sum += number * factor * load(inputs[i], token * input.width + k, input.type);
      }
    }
    return sum;
  }

  int64_t ofSequence(int64_t sequence) const {
    int64_t sum = 0, number = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& input = engine->inputs[i];
      if (input.rows != kPadfreeSequences || input.name == "seq_lens") continue;
      ++number;
      for (int64_t k = 0; k < input.width; ++k) {
        sum += 1000 * number * (k + 1) * load(inputs[i], sequence * input.width + k, input.type);
      }
    }
    return sum;
  }

  void compute(const std::vector<int64_t>& seq_lens) {
    for (size_t o = 0; o < outputs.size(); ++o) {
      const Tensor& output = engine->outputs[o];
      int64_t token = 0;
      for (int64_t b = 0; b < sizes.sequences; ++b) {
        int64_t pooled = ofSequence(b);
        for (int64_t p = 0; p < seq_lens[b]; ++p, ++token) {
          pooled += ofToken(token, p + 1);
          if (output.rows != kPadfreeTokens) continue;
          const int64_t value = 3 * seq_lens[b] + 7 * p + ofToken(token, 1);
          for (int64_t e = 0; e < output.width; ++e) {
            store(outputs[o].data() + token * output.rowBytes(), e, modulo(e + value), output.type);
          }
        }
        if (output.rows != kPadfreeSequences) continue;
        for (int64_t e = 0; e < output.width; ++e) {
          store(outputs[o].data() + b * output.rowBytes(), e, modulo(e + pooled), output.type);
        }
      }
    }
  }
};

namespace {

PadfreeEngine* openEngine(const PadfreePlan* plan, PadfreeError* error) {
  std::ifstream file(plan->path);
  if (!file) return fail(error, std::string(plan->path) + " cannot be read"), nullptr;
  auto* engine = new PadfreeEngine{{}, {}, {}, plan->max_tokens, plan->max_sequences, plan->max_slots};
  std::string name;
  for (int64_t value = 0; file >> name >> value;) engine->settings[name] = value;
  if (engine->setting("fail_open") > 0) {
    delete engine;
    return fail(error, "the plan does not want to be opened"), nullptr;
  }
  for (int32_t i = 0; i < plan->input_count; ++i) engine->inputs.push_back(copyOf(plan->inputs[i]));
  for (int32_t i = 0; i < plan->output_count; ++i) engine->outputs.push_back(copyOf(plan->outputs[i]));
  ++live_engines;
  std::fprintf(stderr, "fake engine: opened on device %d, %d live\n", plan->device, live_engines.load());
  return engine;
}

void closeEngine(PadfreeEngine* engine) {
  delete engine;
  --live_engines;
  std::fprintf(stderr, "fake engine: closed, %d engines and %d lanes live\n", live_engines.load(), live_lanes.load());
}

PadfreeLane* openLane(PadfreeEngine* engine, PadfreeError*) {
  ++live_lanes;
  return new PadfreeLane{engine, {}, {}, {}, {}, {}};
}

void closeLane(PadfreeLane* lane) {
  delete lane;
  --live_lanes;
}

bool arrange(PadfreeLane* lane, const PadfreeSizes* sizes, void** inputs, PadfreeError* error) {
  const PadfreeEngine& engine = *lane->engine;
  if (sizes->tokens < 1 || sizes->tokens > engine.max_tokens || sizes->sequences < 1 ||
      sizes->sequences > engine.max_sequences || sizes->slots < 1 || sizes->slots > engine.max_slots) {
    return fail(error, "the profile does not take these sizes");
  }
  lane->sizes = *sizes;
  const int64_t rows[] = {sizes->tokens, sizes->sequences, sizes->slots, 1};
  lane->inputs.clear();
  for (size_t i = 0; i < engine.inputs.size(); ++i) {
    const Tensor& input = engine.inputs[i];
    lane->inputs.emplace_back(rows[input.rows] * input.rowBytes(), '\xcd');  // what nobody writes is no small number
    inputs[i] = lane->inputs.back().data();
  }
  lane->outputs.clear();
  for (const Tensor& output : engine.outputs) lane->outputs.emplace_back(rows[output.rows] * output.rowBytes());
  return true;
}

bool copyIn(PadfreeLane* lane, int32_t input, int64_t offset, const void* source, int64_t bytes, PadfreeError*) {
  std::memcpy(lane->inputs[input].data() + offset, source, bytes);
  return true;
}

bool start(PadfreeLane* lane, const bool* to_host, PadfreeError*) {
  lane->to_host.assign(to_host, to_host + lane->engine->outputs.size());
  const int64_t delay = lane->engine->setting("delay_us");
  lane->ends = std::chrono::steady_clock::now() + std::chrono::microseconds(delay > 0 ? delay : 0);
  return true;
}

bool wait(PadfreeLane* lane, PadfreeError* error) {
  std::this_thread::sleep_until(lane->ends);
  const std::vector<int64_t> seq_lens = lane->lengths();
  int64_t sum = 0;
  for (const int64_t length : seq_lens) sum += length;
  if (sum != lane->sizes.tokens) return fail(error, "seq_lens do not add up to the tokens");
  for (size_t i = 0; i < lane->inputs.size(); ++i) {
    if (lane->engine->inputs[i].rows == kPadfreeOnce && load(lane->inputs[i], 0, kPadfreeInt32) != -1) {
      return fail(error, "the number for the whole run is not -1");
    }
  }
  const int64_t bad = lane->engine->setting("fail_value");
  for (int64_t t = 0; bad >= 0 && t < lane->sizes.tokens; ++t) {
    if (load(lane->inputs[0], t, kPadfreeInt32) == bad) return fail(error, "the run met a value that fails");
  }
  lane->compute(seq_lens);
  return true;
}

const void* output(PadfreeLane* lane, int32_t number) {
  return lane->to_host[number] ? lane->outputs[number].data() : nullptr;
}

bool copyOut(PadfreeLane* lane, int32_t number, int64_t offset, void* destination, int64_t bytes, PadfreeError*) {
  std::memcpy(destination, lane->outputs[number].data() + offset, bytes);
  return true;
}

bool zeroOut(PadfreeLane*, void* destination, int64_t bytes, PadfreeError*) {
  std::memset(destination, 0, bytes);
  return true;
}

bool finishCopies(PadfreeLane*, PadfreeError*) {
  return true;
}

void settle(PadfreeLane* lane) {
  for (auto& output : lane->outputs) output.assign(output.size(), '\xcd');  // nobody reads them now
}

bool readDevice(PadfreeEngine*, void* destination, const void* source, int64_t bytes, PadfreeError*) {
  std::memcpy(destination, source, bytes);
  return true;
}

constexpr PadfreeEngineApi kApi = {kPadfreeEngineAbi, openEngine, closeEngine,  openLane, closeLane,
                                   arrange,           copyIn,     start,        wait,     output,
                                   copyOut,           zeroOut,    finishCopies, settle,   readDevice};

}  // namespace

extern "C" __attribute__((visibility("default"))) const PadfreeEngineApi* padfree_engine_api() {
  return &kApi;
}
