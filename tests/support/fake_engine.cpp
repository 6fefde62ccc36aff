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
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_abi.h"

namespace padfree {
namespace {

constexpr int64_t kModulus = 2039;  // all results are exact in 16 bits of floating point

// Numbers in a row.
int64_t widthOf(const PadfreeTensor& tensor) {
  int64_t width = 1;
  for (const int64_t size : tensor.trailing) width *= size;
  return width;
}

std::atomic<int> live_engines{0}, live_lanes{0};

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

struct FakeEngine final : Engine {
  explicit FakeEngine(const PadfreePlan& wanted) : plan(wanted) {
    std::ifstream file(plan.path);
    if (!file) throw std::runtime_error(plan.path + " cannot be read");
    std::string name;
    for (int64_t value = 0; file >> name >> value;) settings[name] = value;
    if (setting("fail_open") > 0) throw std::runtime_error("the plan does not want to be opened");
    ++live_engines;
    std::fprintf(stderr, "fake engine: opened on device %d, %d live\n", plan.device, live_engines.load());
  }
  ~FakeEngine() override {
    --live_engines;
    std::fprintf(stderr, "fake engine: closed, %d engines and %d lanes live\n", live_engines.load(), live_lanes.load());
  }

  std::unique_ptr<Lane> openLane() override;
  void read(void* destination, const void* source, int64_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  int64_t setting(const char* name) const {
    const auto found = settings.find(name);
    return found == settings.end() ? -1 : found->second;
  }

  const PadfreePlan plan;
  std::map<std::string, int64_t> settings;
};

struct FakeLane final : Lane {
  explicit FakeLane(const FakeEngine& owner) : engine(owner) { ++live_lanes; }
  ~FakeLane() override { --live_lanes; }

  void arrange(const PadfreeSizes& wanted, void** memory) override {
    const PadfreePlan& plan = engine.plan;
    if (wanted.tokens < 1 || wanted.tokens > plan.most.tokens || wanted.sequences < 1 ||
        wanted.sequences > plan.most.sequences || wanted.slots < 1 || wanted.slots > plan.most.slots) {
      throw std::runtime_error("the profile does not take these sizes");
    }
    sizes = wanted;
    const int64_t rows[] = {sizes.tokens, sizes.sequences, sizes.slots, 1};
    inputs.clear();
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      const PadfreeTensor& input = plan.inputs[i];
      inputs.emplace_back(rows[input.rows] * input.row_bytes, '\xcd');  // what nobody writes is no small number
      memory[i] = inputs.back().data();
    }
    outputs.clear();
    for (const PadfreeTensor& output : plan.outputs) outputs.emplace_back(rows[output.rows] * output.row_bytes);
  }

  void copyIn(size_t input, int64_t offset, const void* source, int64_t bytes) override {
    std::memcpy(inputs[input].data() + offset, source, bytes);
  }

  void start(const bool* wanted) override {
    to_host.assign(wanted, wanted + outputs.size());
    const int64_t delay = engine.setting("delay_us");
    ends = std::chrono::steady_clock::now() + std::chrono::microseconds(delay > 0 ? delay : 0);
  }

  void wait() override {
    std::this_thread::sleep_until(ends);
    const std::vector<int64_t> seq_lens = lengths();
    int64_t sum = 0;
    for (const int64_t length : seq_lens) sum += length;
    if (sum != sizes.tokens) throw std::runtime_error("seq_lens do not add up to the tokens");
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (engine.plan.inputs[i].rows == kPadfreeOnce && load(inputs[i], 0, kPadfreeInt32) != -1) {
        throw std::runtime_error("the number for the whole run is not -1");
      }
    }
    const int64_t bad = engine.setting("fail_value");
    for (int64_t t = 0; bad >= 0 && t < sizes.tokens; ++t) {
      if (load(inputs[0], t, kPadfreeInt32) == bad) throw std::runtime_error("the run met a value that fails");
    }
    compute(seq_lens);
  }

  const char* output(size_t number) const override { return to_host[number] ? outputs[number].data() : nullptr; }
  void copyOut(size_t output, int64_t offset, void* destination, int64_t bytes) override {
    std::memcpy(destination, outputs[output].data() + offset, bytes);
  }
  void zeroOut(void* destination, int64_t bytes) override { std::memset(destination, 0, bytes); }
  void finishCopies() override {}
  void settle() noexcept override {
    for (auto& output : outputs) output.assign(output.size(), '\xcd');  // nobody reads them now
  }

 private:
  std::vector<int64_t> lengths() const {
    std::vector<int64_t> found;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (engine.plan.inputs[i].name != "seq_lens") continue;
      for (int64_t b = 0; b < sizes.sequences; ++b) found.push_back(load(inputs[i], b, kPadfreeInt32));
    }
    return found;
  }

  int64_t ofToken(int64_t token, int64_t factor) const {
    int64_t sum = 0, number = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const PadfreeTensor& input = engine.plan.inputs[i];
      if (input.rows != kPadfreeTokens) continue;
      ++number;
      for (int64_t k = 0; k < widthOf(input); ++k) {
        sum += number * factor * load(inputs[i], token * widthOf(input) + k, input.type);
      }
    }
    return sum;
  }

  int64_t ofSequence(int64_t sequence) const {
    int64_t sum = 0, number = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const PadfreeTensor& input = engine.plan.inputs[i];
      if (input.rows != kPadfreeSequences || input.name == "seq_lens") continue;
      ++number;
      for (int64_t k = 0; k < widthOf(input); ++k) {
        sum += 1000 * number * (k + 1) * load(inputs[i], sequence * widthOf(input) + k, input.type);
      }
    }
    return sum;
  }

  void compute(const std::vector<int64_t>& seq_lens) {
    for (size_t o = 0; o < outputs.size(); ++o) {
      const PadfreeTensor& output = engine.plan.outputs[o];
      int64_t token = 0;
      for (int64_t b = 0; b < sizes.sequences; ++b) {
        int64_t pooled = ofSequence(b);
        for (int64_t p = 0; p < seq_lens[b]; ++p, ++token) {
          pooled += ofToken(token, p + 1);
          if (output.rows != kPadfreeTokens) continue;
          const int64_t value = 3 * seq_lens[b] + 7 * p + ofToken(token, 1);
          for (int64_t e = 0; e < widthOf(output); ++e) {
            store(outputs[o].data() + token * output.row_bytes, e, modulo(e + value), output.type);
          }
        }
        if (output.rows != kPadfreeSequences) continue;
        for (int64_t e = 0; e < widthOf(output); ++e) {
          store(outputs[o].data() + b * output.row_bytes, e, modulo(e + pooled), output.type);
        }
      }
    }
  }

  const FakeEngine& engine;
  PadfreeSizes sizes{};
  std::vector<std::vector<char>> inputs, outputs;
  std::vector<bool> to_host;
  std::chrono::steady_clock::time_point ends;
};

std::unique_ptr<Lane> FakeEngine::openLane() {
  return std::make_unique<FakeLane>(*this);
}

std::unique_ptr<Engine> open(const PadfreePlan& plan) {
  return std::make_unique<FakeEngine>(plan);
}

constexpr PadfreeEngineApi kApi = {kPadfreeEngineAbi, open};

}  // namespace
}  // namespace padfree

extern "C" __attribute__((visibility("default"))) const padfree::PadfreeEngineApi* padfree_engine_api() {
  return &padfree::kApi;
}
