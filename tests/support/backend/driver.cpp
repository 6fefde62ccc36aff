// SPDX-License-Identifier: Apache-2.0
// Drives the backend as the core does: driver ENGINE FOLDER REQUESTS INSTANCES. FOLDER holds 1/model.plan and its
// metadata, those of tests/support/native_triton.py. Each instance has a thread, as in the server; requests are of
// random sizes, in random pieces, in host or "device" memory, some hostile, some cancelled. Instances go while runs are
// under way.
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "backend/core.h"

namespace {

using Random = std::mt19937;

constexpr int64_t kModulus = 2039, kVocabulary = 930, kLongest = 64;

std::atomic<int> right{0}, refused{0}, cancelled{0}, failed{0};

void append(core::Tensor& tensor, const std::vector<int32_t>& values, Random& random) {
  const char* bytes = reinterpret_cast<const char*>(values.data());
  const uint64_t size = values.size() * sizeof(int32_t);
  tensor.bytes = size;
  const bool on_device = random() % 8 == 0;
  for (uint64_t at = 0; at < size;) {
    // Mostly one piece; others may end anywhere, also within a number.
    const uint64_t piece = random() % 4 != 0 ? size - at : std::min<uint64_t>(size - at, 1 + random() % size);
    tensor.buffers.push_back({std::make_unique<char[]>(piece), piece, on_device});
    std::memcpy(tensor.buffers.back().data.get(), bytes + at, piece);
    at += piece;
  }
}

core::Tensor tensorOf(const char* name, std::vector<int64_t> shape, const std::vector<int32_t>& values,
                      Random& random) {
  core::Tensor tensor{name, TRITONSERVER_TYPE_INT32, std::move(shape), {}};
  append(tensor, values, random);
  return tensor;
}

// What the stand-in of an engine should say, as fake_engine.cpp describes it.
struct Sequences {
  int64_t width = 1;
  std::vector<std::vector<int32_t>> ids, types;

  int64_t token(size_t b, size_t p) const { return ids[b][p] + 2 * types[b][p]; }

  bool isRight(const core::Answer& answer, const std::vector<std::string>& wanted) const {
    for (const std::string& name : wanted) {
      const auto found = answer.outputs.find(name);
      if (found == answer.outputs.end() || found->second.shape[0] != static_cast<int64_t>(ids.size())) return false;
      const auto* values = reinterpret_cast<const float*>(found->second.buffers.front().data.get());
      if (!(name == "pooled" ? arePooled(values) : areHidden(values))) return false;
    }
    return answer.outputs.size() == wanted.size();
  }

  bool arePooled(const float* values) const {
    for (size_t b = 0; b < ids.size(); ++b) {
      int64_t sum = 0;
      for (size_t p = 0; p < ids[b].size(); ++p) sum += static_cast<int64_t>(p + 1) * token(b, p);
      for (int64_t e = 0; e < 3; ++e) {
        if (values[3 * b + e] != static_cast<float>((e + sum) % kModulus)) return false;
      }
    }
    return true;
  }

  bool areHidden(const float* values) const {
    for (size_t b = 0; b < ids.size(); ++b) {
      const auto length = static_cast<int64_t>(ids[b].size());
      for (int64_t p = 0; p < width; ++p) {
        for (int64_t e = 0; e < 2; ++e) {
          const int64_t expected = p < length ? (e + 3 * length + 7 * p + token(b, p)) % kModulus : 0;
          if (values[2 * (b * width + p) + e] != static_cast<float>(expected)) return false;
        }
      }
    }
    return true;
  }
};

Sequences randomSequences(Random& random) {
  Sequences made;
  const size_t count = 1 + random() % (random() % 20 == 0 ? 40 : 3);  // some are larger than a run
  for (size_t b = 0; b < count; ++b) {
    const size_t length = 1 + random() % kLongest;
    made.width = std::max<int64_t>(made.width, static_cast<int64_t>(length));
    made.ids.emplace_back();
    made.types.emplace_back();
    for (size_t p = 0; p < length; ++p) {
      made.ids.back().push_back(static_cast<int32_t>(random() % kVocabulary));
      made.types.back().push_back(static_cast<int32_t>(random() % 2));
    }
  }
  return made;
}

std::vector<int32_t> padded(const std::vector<std::vector<int32_t>>& rows, int64_t width) {
  std::vector<int32_t> values(rows.size() * width, -5);
  for (size_t b = 0; b < rows.size(); ++b) std::copy(rows[b].begin(), rows[b].end(), values.begin() + b * width);
  return values;
}

void makeGood(core::Request& request, Random& random) {
  const Sequences sequences = randomSequences(random);
  const auto count = static_cast<int64_t>(sequences.ids.size());
  const std::vector<int64_t> shape = {count, sequences.width};
  std::vector<int32_t> lengths;
  for (const auto& row : sequences.ids) lengths.push_back(static_cast<int32_t>(row.size()));
  request.inputs.push_back(tensorOf("token_type_ids", shape, padded(sequences.types, sequences.width), random));
  request.inputs.push_back(tensorOf("seq_lens", {count, 1}, lengths, random));
  request.inputs.push_back(tensorOf("input_ids", shape, padded(sequences.ids, sequences.width), random));
  request.check = [sequences, &request](const core::Answer& answer) {
    if (!answer.is_error) {
      if (!sequences.isRight(answer, request.wanted)) core::fail("a wrong answer");
      ++right;
    } else if (answer.code == TRITONSERVER_ERROR_CANCELLED) {
      if (!request.is_cancelled) core::fail("cancelled by nobody");
      ++cancelled;
    } else {
      if (core::fail_every == 0) core::fail("an error to a good request: " + answer.message);
      ++failed;
    }
  };
}

// Shapes, sizes and values that no model has.
void makeHostile(core::Request& request, Random& random) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  static const std::vector<std::vector<int64_t>> kShapes = {{},
                                                            {0},
                                                            {1},
                                                            {1, 0},
                                                            {0, 1},
                                                            {-1, -1},
                                                            {1, -3},
                                                            {kHuge, 2},
                                                            {kHuge, 4},
                                                            {2, 2},
                                                            {1, 5, 1},
                                                            {1, INT64_MAX},
                                                            {1, 65},
                                                            {INT32_MAX, 1},
                                                            {1 << 20, 1 << 20},
                                                            {3, 1}};
  const std::vector<int32_t> values(random() % 9, static_cast<int32_t>(random()));
  request.inputs.push_back(tensorOf("input_ids", kShapes[random() % kShapes.size()], values, random));
  core::Tensor& ids = request.inputs.back();
  if (random() % 4 == 0) ids.bytes = random();  // other than there are
  if (random() % 6 == 0) ids.type = static_cast<int>(random() % 16);
  if (random() % 8 == 0) ids.name = "other";
  if (random() % 3 == 0) {
    request.inputs.push_back(tensorOf("seq_lens", kShapes[random() % kShapes.size()], values, random));
  }
  if (random() % 3 == 0) {
    request.inputs.push_back(tensorOf("token_type_ids", kShapes[random() % kShapes.size()], values, random));
  }
  if (random() % 5 == 0) request.wanted.push_back("no such output");
  request.check = [](const core::Answer& answer) { answer.is_error ? ++refused : ++right; };
}

std::unique_ptr<core::Request> makeRequest(Random& random) {
  auto request = std::make_unique<core::Request>();
  if (random() % 4 != 0) request->wanted.push_back("pooled");
  if (random() % 3 != 0) request->wanted.push_back("hidden");
  request->outputs_on_device = random() % 8 == 0;
  if (random() % 10 == 0) {
    makeHostile(*request, random);
  } else {
    makeGood(*request, random);
  }
  return request;
}

void serve(core::Instance& instance, int requests, unsigned seed, std::deque<std::unique_ptr<core::Request>>& made) {
  Random random(seed);
  auto* handle = reinterpret_cast<TRITONBACKEND_ModelInstance*>(&instance);
  while (static_cast<int>(made.size()) < requests) {
    std::vector<TRITONBACKEND_Request*> batch;
    for (unsigned i = 0, count = 1 + random() % 12; i < count; ++i) {
      made.push_back(makeRequest(random));
      if (random() % 30 == 0) made.back()->is_cancelled = true;
      batch.push_back(reinterpret_cast<TRITONBACKEND_Request*>(made.back().get()));
    }
    const auto count = static_cast<uint32_t>(batch.size());
    const std::string error = core::take(TRITONBACKEND_ModelInstanceExecute(handle, batch.data(), count));
    if (!error.empty()) core::fail("a batch that is given back: " + error);
    const size_t one = random() % made.size();  // of those that are under way, perhaps
    if (random() % 4 == 0 && made[one]->releases == 0) made[one]->is_cancelled = true;
  }
  // While the last runs are under way.
  const std::string error = core::take(TRITONBACKEND_ModelInstanceFinalize(handle));
  if (!error.empty()) core::fail(error);
}

void require(TRITONSERVER_Error* error) {
  const std::string message = core::take(error);
  if (!message.empty()) core::fail(message);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  const int requests = std::atoi(arguments[3]), instances = std::atoi(arguments[4]);
  core::fail_every = std::atoi(arguments[5]);
  core::Backend backend{"{\"cmdline\":{\"engine\":\"" + std::string(arguments[1]) + "\"}}"};
  core::Model model{&backend, arguments[2], "{\"name\":\"driven\",\"max_batch_size\":64,\"input\":[],\"output\":[]}"};
  auto* backend_handle = reinterpret_cast<TRITONBACKEND_Backend*>(&backend);
  auto* model_handle = reinterpret_cast<TRITONBACKEND_Model*>(&model);
  require(TRITONBACKEND_Initialize(backend_handle));
  require(TRITONBACKEND_ModelInitialize(model_handle));
  std::deque<core::Instance> opened;
  std::vector<std::deque<std::unique_ptr<core::Request>>> made(instances);
  std::vector<std::thread> threads;
  for (int i = 0; i < instances; ++i) {
    opened.push_back({&model, "driven_" + std::to_string(i)});
    require(TRITONBACKEND_ModelInstanceInitialize(reinterpret_cast<TRITONBACKEND_ModelInstance*>(&opened.back())));
  }
  for (int i = 0; i < instances; ++i) {
    threads.emplace_back([&, i] { serve(opened[i], requests / instances, 7 + i, made[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  require(TRITONBACKEND_ModelFinalize(model_handle));
  require(TRITONBACKEND_Finalize(backend_handle));
  int total = 0, unanswered = 0;
  for (const auto& of_instance : made) {
    for (const auto& request : of_instance) {
      ++total;
      if (request->releases != 1) core::fail("a request that was never released");
      if (request->answers != 1) ++unanswered;
    }
  }
  std::printf("%d requests: %d right, %d refused, %d cancelled, %d failed, %d unanswered, %d left\n", total,
              right.load(), refused.load(), cancelled.load(), failed.load(), unanswered,
              core::live_responses.load() + core::live_metrics.load());
  return 0;
}
