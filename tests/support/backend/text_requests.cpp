// SPDX-License-Identifier: Apache-2.0
// Requests of texts, of words whose ids are known: the model's tokenizer is that of
// tests/support/compiled_tokenizers.py.
#include <algorithm>
#include <cstring>

#include "backend/made_requests.h"

namespace made {
namespace {

struct Word {
  const char* text;
  std::vector<int32_t> ids;
};
const std::vector<Word> kWords = {{"a", {1}}, {"aa", {1, 2}}, {"b", {3}},           {"ab", {0}},   {"!", {0}},
                                  {"A", {1}}, {"Aa", {1, 2}}, {"\xc3\xa9", {4}},    {"<x>", {50}}, {"a!b", {1, 0, 3}},
                                  {"z", {0}}, {"  ", {}},     {"\xe4\xb8\x80", {5}}};
constexpr int32_t kFront = 101, kBack = 102;
constexpr size_t kMost = 16;
constexpr unsigned kManyWords = 400;

void appendString(std::string& values, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  values.append(reinterpret_cast<const char*>(&size), sizeof(size));
  values += text;
}

core::Tensor stringsOf(const char* name, std::vector<int64_t> shape, const std::string& values, bool on_device,
                       Random& random) {
  core::Tensor tensor{name, TRITONSERVER_TYPE_BYTES, std::move(shape), {}};
  append(tensor, values.data(), values.size(), on_device, random);
  return tensor;
}

// Words with spaces between them, and their ids, which are added to `ids`.
std::string randomText(Random& random, std::vector<int32_t>& ids, unsigned most = kManyWords) {
  std::string text;
  const unsigned count = random() % (random() % 20 == 0 ? most : std::min(most, 12u));
  for (unsigned i = 0; i < count; ++i) {
    const Word& word = kWords[random() % kWords.size()];
    text += std::string(i == 0 ? "" : " ") + word.text;
    ids.insert(ids.end(), word.ids.begin(), word.ids.end());
  }
  return text;
}

const int32_t* numbersOf(const core::Answer& answer, const char* name) {
  return reinterpret_cast<const int32_t*>(answer.outputs.at(name).buffers.front().data.get());
}

std::vector<int32_t> keptOf(std::vector<int32_t> row) {
  if (row.size() <= kMost) return row;
  row.resize(kMost);
  row.back() = kBack;
  return row;
}

bool areRightLengths(const core::Answer& answer, const std::vector<std::vector<int32_t>>& rows) {
  for (size_t b = 0; b < rows.size(); ++b) {
    if (numbersOf(answer, "seq_lens")[b] != static_cast<int32_t>(std::min(rows[b].size(), kMost))) return false;
    const bool was_cut = answer.outputs.at("truncated").buffers.front().data[b] != 0;
    if (was_cut != (rows[b].size() > kMost)) return false;
  }
  return true;
}

bool isRight(const core::Answer& answer, const std::vector<std::vector<int32_t>>& rows) {
  const core::Tensor& ids = answer.outputs.at("input_ids");
  const auto width = static_cast<size_t>(ids.shape[1]);
  if (ids.shape[0] != static_cast<int64_t>(rows.size()) || ids.bytes != rows.size() * width * sizeof(int32_t)) {
    return false;
  }
  for (size_t b = 0; b < rows.size(); ++b) {
    std::vector<int32_t> expected = keptOf(rows[b]);
    expected.resize(width);
    if (!std::equal(expected.begin(), expected.end(), numbersOf(answer, "input_ids") + b * width)) return false;
  }
  return areRightLengths(answer, rows);
}

void makeGoodTexts(core::Request& request, Random& random) {
  std::string values;
  std::vector<std::vector<int32_t>> rows;
  const int64_t count = 1 + random() % 4;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back({kFront});
    appendString(values, randomText(random, rows.back()));
    rows.back().push_back(kBack);
  }
  request.inputs.push_back(stringsOf("text", {count, 1}, values, false, random));
  request.wanted = {"input_ids", "seq_lens", "truncated"};
  request.check = [rows, &request](const core::Answer& answer) {
    made::count(request, answer, !answer.is_error && isRight(answer, rows));
  };
}

// Texts or pairs of them for a plan; now and then with so much white space that they are large.
void makeTextsForPlan(core::Request& request, Random& random) {
  std::string texts, pairs;
  std::vector<std::vector<int32_t>> rows;
  Sequences sequences;
  const int64_t count = 1 + random() % 4;
  const bool are_pairs = random() % 3 == 0;
  const std::string space = random() % 200 == 0 ? std::string(40000, ' ') : "";
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back({kFront});
    appendString(texts, randomText(random, rows.back(), are_pairs ? 2 : kManyWords) + space);
    rows.back().push_back(kBack);
    std::vector<int32_t> types(rows.back().size());
    if (are_pairs) {
      appendString(pairs, randomText(random, rows.back(), 2) + space);
      rows.back().push_back(kBack);
      types.resize(rows.back().size(), 1);
    }
    types.resize(std::min(types.size(), kMost));
    sequences.add(keptOf(rows.back()), types);
  }
  request.inputs.push_back(stringsOf("text", {count, 1}, texts, false, random));
  if (are_pairs) request.inputs.push_back(stringsOf("text_pair", {count, 1}, pairs, false, random));
  request.wanted = {"seq_lens", "truncated", "pooled"};
  if (random() % 3 != 0) request.wanted.push_back("hidden");
  request.check = [rows, sequences, &request](const core::Answer& answer) {
    const bool has_all = answer.outputs.size() == request.wanted.size();
    made::count(request, answer,
                !answer.is_error && has_all && areRightLengths(answer, rows) && sequences.areRight(answer));
  };
}

// Bytes, sizes and shapes that no request has.
void makeHostileTexts(core::Request& request, Random& random) {
  std::string values;
  for (unsigned i = 0, strings = random() % 4; i < strings; ++i) {
    std::string text(random() % 40, '\0');
    for (char& letter : text) letter = static_cast<char>(random());
    appendString(values, text);
  }
  if (random() % 3 == 0 && !values.empty()) values[random() % values.size()] = static_cast<char>(random());
  if (random() % 3 == 0) values.resize(random() % (values.size() + 1));
  const bool on_device = random() % 6 == 0;
  const auto rows = static_cast<int64_t>(1 + random() % 3);
  const auto shape = random() % 2 == 0 ? hostileShape(random) : std::vector<int64_t>{rows, 1};
  request.inputs.push_back(stringsOf("text", shape, values, on_device, random));
  if (random() % 6 == 0) request.inputs.back().bytes = random();
  if (random() % 6 == 0) request.inputs.back().type = static_cast<int>(random() % 16);
  if (random() % 3 == 0) request.inputs.push_back(stringsOf("text_pair", hostileShape(random), values, false, random));
  if (random() % 3 == 0) {
    request.inputs.push_back(stringsOf("truncate", hostileShape(random), values, false, random));
    request.inputs.back().type = TRITONSERVER_TYPE_BOOL;
  }
  request.wanted = {"input_ids", "token_type_ids", "no such output", "truncated", "position_ids"};
  request.check = [](const core::Answer& answer) { answer.is_error ? ++refused : ++right; };
}

// Texts that belong to a request of token ids, or are hostile by themselves.
void makeHostileTextsForPlan(core::Request& request, Random& random) {
  makeHostileTexts(request, random);
  if (random() % 2 == 0) {
    core::Tensor ids{"input_ids", TRITONSERVER_TYPE_INT32, hostileShape(random), {}};
    const std::string values(4 * (random() % 4), '\1');
    append(ids, values.data(), values.size(), false, random);
    request.inputs.push_back(std::move(ids));
  }
  request.wanted = {"pooled", "no such output", "truncated", "seq_lens"};
}

}  // namespace

std::unique_ptr<core::Request> ofTexts(Random& random) {
  auto request = std::make_unique<core::Request>();
  if (random() % 6 == 0) {
    makeHostileTexts(*request, random);
  } else {
    makeGoodTexts(*request, random);
  }
  return request;
}

std::unique_ptr<core::Request> ofTokensOrTexts(Random& random) {
  if (random() % 3 == 0) return ofTokens(random);
  auto request = std::make_unique<core::Request>();
  if (random() % 6 == 0) {
    makeHostileTextsForPlan(*request, random);
  } else {
    makeTextsForPlan(*request, random);
  }
  return request;
}

}  // namespace made
