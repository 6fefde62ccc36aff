// SPDX-License-Identifier: Apache-2.0
// Requests for sequences of token ids, and what the stand-in of an engine says to them.
#include <algorithm>
#include <utility>

#include "backend/made_requests.h"

namespace made {
namespace {

constexpr int64_t kModulus = 2039, kVocabulary = 930, kLongest = 64;

core::Tensor tensorOf(const char* name, std::vector<int64_t> shape, const std::vector<int32_t>& values,
                      Random& random) {
  core::Tensor tensor{name, TRITONSERVER_TYPE_INT32, std::move(shape), {}};
  append(tensor, reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t), random() % 8 == 0,
         random);
  return tensor;
}

Sequences randomSequences(Random& random) {
  Sequences made;
  const size_t count = 1 + random() % (random() % 20 == 0 ? 40 : 3);  // some are larger than a run
  for (size_t b = 0; b < count; ++b) {
    std::vector<int32_t> ids, types;
    for (size_t p = 0, length = 1 + random() % kLongest; p < length; ++p) {
      ids.push_back(static_cast<int32_t>(random() % kVocabulary));
      types.push_back(static_cast<int32_t>(random() % 2));
    }
    made.add(std::move(ids), std::move(types));
  }
  return made;
}

std::vector<int32_t> padded(const std::vector<std::vector<int32_t>>& rows, int64_t width) {
  std::vector<int32_t> values(rows.size() * width, -5);
  for (size_t b = 0; b < rows.size(); ++b) std::copy(rows[b].begin(), rows[b].end(), values.begin() + b * width);
  return values;
}

void makeGoodTokens(core::Request& request, Random& random) {
  const Sequences sequences = randomSequences(random);
  const auto count = static_cast<int64_t>(sequences.ids.size());
  const std::vector<int64_t> shape = {count, sequences.width};
  std::vector<int32_t> lengths;
  for (const auto& row : sequences.ids) lengths.push_back(static_cast<int32_t>(row.size()));
  request.inputs.push_back(tensorOf("token_type_ids", shape, padded(sequences.types, sequences.width), random));
  request.inputs.push_back(tensorOf("seq_lens", {count, 1}, lengths, random));
  request.inputs.push_back(tensorOf("input_ids", shape, padded(sequences.ids, sequences.width), random));
  request.check = [sequences, &request](const core::Answer& answer) {
    const bool has_all = answer.outputs.size() == request.wanted.size();
    made::count(request, answer, !answer.is_error && has_all && sequences.areRight(answer));
  };
}

// Shapes, sizes and values that no model has.
void makeHostileTokens(core::Request& request, Random& random) {
  const std::vector<int32_t> values(random() % 9, static_cast<int32_t>(random()));
  request.inputs.push_back(tensorOf("input_ids", hostileShape(random), values, random));
  core::Tensor& ids = request.inputs.back();
  if (random() % 4 == 0) ids.bytes = random();  // other than there are
  if (random() % 6 == 0) ids.type = static_cast<int>(random() % 16);
  if (random() % 8 == 0) ids.name = "other";
  if (random() % 3 == 0) {
    request.inputs.push_back(tensorOf("seq_lens", hostileShape(random), values, random));
  }
  if (random() % 3 == 0) {
    request.inputs.push_back(tensorOf("token_type_ids", hostileShape(random), values, random));
  }
  if (random() % 5 == 0) request.wanted.push_back("no such output");
  request.check = [](const core::Answer& answer) { answer.is_error ? ++refused : ++right; };
}

}  // namespace

void Sequences::add(std::vector<int32_t> row, std::vector<int32_t> row_types) {
  width = std::max(width, static_cast<int64_t>(row.size()));
  ids.push_back(std::move(row));
  types.push_back(std::move(row_types));
}

bool Sequences::areRight(const core::Answer& answer) const {
  for (const char* name : {"pooled", "hidden"}) {
    const auto found = answer.outputs.find(name);
    if (found == answer.outputs.end()) continue;
    if (found->second.shape[0] != static_cast<int64_t>(ids.size())) return false;
    const auto* values = reinterpret_cast<const float*>(found->second.buffers.front().data.get());
    if (!(name[0] == 'p' ? arePooled(values) : areHidden(values))) return false;
  }
  return true;
}

bool Sequences::arePooled(const float* values) const {
  for (size_t b = 0; b < ids.size(); ++b) {
    int64_t sum = 0;
    for (size_t p = 0; p < ids[b].size(); ++p) sum += static_cast<int64_t>(p + 1) * token(b, p);
    for (int64_t e = 0; e < 3; ++e) {
      if (values[3 * b + e] != static_cast<float>((e + sum) % kModulus)) return false;
    }
  }
  return true;
}

bool Sequences::areHidden(const float* values) const {
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

std::unique_ptr<core::Request> ofTokens(Random& random) {
  auto request = std::make_unique<core::Request>();
  if (random() % 4 != 0) request->wanted.push_back("pooled");
  if (random() % 3 != 0) request->wanted.push_back("hidden");
  request->outputs_on_device = random() % 8 == 0;
  if (random() % 10 == 0) {
    makeHostileTokens(*request, random);
  } else {
    makeGoodTokens(*request, random);
  }
  return request;
}

}  // namespace made
