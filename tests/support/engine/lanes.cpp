// SPDX-License-Identifier: Apache-2.0
// Runs a plan of the stand-ins through an engine library: lanes LIBRARY PLAN VERSION GRAPHS RUNS. Two lanes take turns,
// each run started before the other's is waited for; sizes, and what comes from or goes to "device" memory, are random.
// Every answer is compared; at the end nothing may be left.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/engine_abi.h"
#include "engine/fake_cuda.h"

using namespace padfree;

namespace {

constexpr int64_t kMostTokens = 200, kMostSequences = 6, kWidth = 3, kHidden = 5, kVector = 4;

[[noreturn]] void fail(const std::string& reason) {
  std::printf("%s\n", reason.c_str());
  std::exit(1);
}

struct Run {
  std::vector<int32_t> lens, ids;
  std::vector<float> boxes, numbers;
  bool hidden_to_host, vector_to_host;
  int64_t slots = 1;
};

class Driver {
 public:
  explicit Driver(Engine& engine) : lanes_{engine.openLane(), engine.openLane()} {}

  void start(int lane) {
    Run& run = runs_[lane];
    run = make();
    const auto tokens = static_cast<int64_t>(run.ids.size());
    const PadfreeSizes sizes{tokens, static_cast<int64_t>(run.lens.size()), run.slots};
    void* inputs[5];
    lanes_[lane]->arrange(sizes, inputs);
    fill(lane, 0, inputs[0], run.ids.data(), run.ids.size() * sizeof(int32_t));
    fill(lane, 1, inputs[1], run.boxes.data(), run.boxes.size() * sizeof(float));
    fill(lane, 2, inputs[2], run.numbers.data(), run.numbers.size() * sizeof(float));
    std::memcpy(inputs[3], run.lens.data(), run.lens.size() * sizeof(int32_t));
    std::memset(inputs[4], 0, run.slots * sizeof(int32_t));
    const bool to_host[] = {run.hidden_to_host, run.vector_to_host};
    lanes_[lane]->start(to_host);
  }

  void finish(int lane) {
    const Run& run = runs_[lane];
    lanes_[lane]->wait();
    const auto hidden = result(lane, 0, run.hidden_to_host, run.ids.size() * kHidden);
    const auto vector = result(lane, 1, run.vector_to_host, run.lens.size() * kVector);
    size_t t = 0;
    for (size_t b = 0; b < run.lens.size(); ++b) {
      int64_t pooled = 1000 * static_cast<int64_t>(run.numbers[b]);
      for (int32_t p = 0; p < run.lens[b]; ++p, ++t) {
        const float* box = &run.boxes[kWidth * t];
        const int64_t sum = run.ids[t] + 2 * static_cast<int64_t>(box[0] + box[1] + box[2]);
        pooled += (p + 1) * sum;
        for (int64_t e = 0; e < kHidden; ++e) compare(hidden[t * kHidden + e], e + 3 * run.lens[b] + 7 * p + sum);
      }
      for (int64_t e = 0; e < kVector; ++e) compare(vector[b * kVector + e], e + pooled);
    }
    if (random_() % 4 != 0) lanes_[lane]->settle();
  }

 private:
  Run make() {
    Run run;
    const int64_t most = random_() % 2 == 0 ? 8 : 60;  // small ones come again, and get graphs
    const size_t count = 1 + random_() % kMostSequences;
    int64_t left = kMostTokens;
    for (size_t b = 0; b < count && left > 0; ++b) {
      const auto length = static_cast<int32_t>(std::min<int64_t>(left, 1 + random_() % most));
      run.lens.push_back(length);
      run.slots = std::max<int64_t>(run.slots, length);
      left -= length;
      run.numbers.push_back(static_cast<float>(random_() % 100));
      for (int32_t p = 0; p < length; ++p) run.ids.push_back(1 + random_() % 900);
    }
    for (size_t i = 0; i < kWidth * run.ids.size(); ++i) run.boxes.push_back(static_cast<float>(random_() % 50));
    run.hidden_to_host = random_() % 3 != 0;
    run.vector_to_host = random_() % 3 != 0;
    return run;
  }

  // An input in two parts, either of which may come from the device.
  void fill(int lane, int input, void* memory, const void* values, size_t bytes) {
    const size_t cut = bytes / 8 * 4;
    const size_t starts[] = {0, cut, bytes};
    for (int part = 0; part < 2; ++part) {
      const size_t at = starts[part], size = starts[part + 1] - at;
      const char* source = static_cast<const char*>(values) + at;
      if (random_() % 4 == 0) {
        lanes_[lane]->copyIn(input, at, source, size);
      } else {
        std::memcpy(static_cast<char*>(memory) + at, source, size);
      }
    }
  }

  std::vector<float> result(int lane, int output, bool to_host, size_t count) {
    const void* host = lanes_[lane]->output(output);
    if ((host != nullptr) != to_host) fail("an output is not where it was wanted");
    std::vector<float> values(count + 1, 7.0F);
    if (to_host) {
      std::memcpy(values.data(), host, count * sizeof(float));
    } else {
      const int64_t half = static_cast<int64_t>(count / 2 * sizeof(float)), all = count * sizeof(float);
      lanes_[lane]->copyOut(output, half, values.data() + count / 2, all - half);
      lanes_[lane]->copyOut(output, 0, values.data(), half);
    }
    lanes_[lane]->zeroOut(values.data() + count, sizeof(float));
    lanes_[lane]->finishCopies();
    if (values[count] != 0) fail("what should be zero is not");
    return values;
  }

  static void compare(float found, int64_t sum) {
    const auto expected = static_cast<float>(sum % 2039);
    if (found != expected) fail("found " + std::to_string(found) + ", expected " + std::to_string(expected));
  }

  std::unique_ptr<Lane> lanes_[2];
  Run runs_[2];
  std::mt19937 random_{5};
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  void* handle = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(dlerror());
  const PadfreeEngineApi& api = *reinterpret_cast<PadfreeEngineApiFunction*>(dlsym(handle, kPadfreeEngineApiName))();
  constexpr int64_t kNumber = sizeof(float);  // and of an int32
  PadfreePlan plan{};
  plan.path = arguments[2];
  plan.tensorrt = arguments[3];
  plan.compute_capability = "9.0";
  plan.gpu_name = "a stand-in";
  plan.cuda_graphs = std::string(arguments[4]) == "on";
  plan.most = {kMostTokens, kMostSequences, 64};
  plan.inputs = {{"ids", kPadfreeTokens, kPadfreeInt32, {}, kNumber},
                 {"boxes", kPadfreeTokens, kPadfreeFloat32, {kWidth}, kWidth * kNumber},
                 {"numbers", kPadfreeSequences, kPadfreeFloat32, {}, kNumber},
                 {"seq_lens", kPadfreeSequences, kPadfreeInt32, {}, kNumber},
                 {"max_seqlen", kPadfreeSlots, kPadfreeInt32, {}, kNumber}};
  plan.outputs = {{"hidden", kPadfreeTokens, kPadfreeFloat32, {kHidden}, kHidden * kNumber},
                  {"vector", kPadfreeSequences, kPadfreeFloat32, {kVector}, kVector * kNumber}};
  const int runs = std::atoi(arguments[5]);
  try {
    const std::unique_ptr<Engine> engine = api.open(plan);
    Driver driver(*engine);
    driver.start(0);
    for (int i = 1; i < runs; ++i) {
      driver.start(i % 2);
      driver.finish((i + 1) % 2);
    }
    driver.finish((runs + 1) % 2);
    int32_t values[] = {4, 5, 6}, read[3] = {};
    engine->read(read, values, sizeof(read));
    if (read[2] != 6) fail("read");
  } catch (const std::exception& error) {
    fail(error.what());
  }
  std::printf("%d runs, %d launches of graphs, %d left\n", runs, fakeCudaLaunches(), fakeCudaLive());
  return 0;
}
