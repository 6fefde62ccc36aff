// SPDX-License-Identifier: Apache-2.0
#include "linear/tables.h"

#include <cstring>
#include <sstream>

namespace padfree {
namespace {

// One line of LinearTables::text.
bool parse(const std::string& line, LinearTableKey& key, LinearTable& table) {
  std::istringstream numbers(line);
  for (int32_t& number : key) numbers >> number;
  for (LinearRange range; numbers >> range.tokens;) {
    if (!(numbers >> range.choice)) return false;
    table.push_back(range);
  }
  return numbers.eof() && !table.empty() && findUnknown(table) == nullptr && table.back().tokens == key.back();
}

// The type; with e4m3 operands also which results there are, as numbers that are no type's, because files of tables
// hold them in this place.
int32_t typesOf(const LinearParams& params) {
  const auto type = static_cast<int32_t>(params.type);
  if (params.scale == nullptr) return type;
  return type + 16 + (params.y != nullptr ? 32 : 0) + (params.y_e4m3 != nullptr ? 64 : 0);
}

// How many features are rotated, as a number that also tells which heads are normed: multiples of kPairBlock are
// negative with those of kNormedHead, and one less with those of kWideHead.
int32_t rotationOf(const LinearParams& params) {
  if (params.head_scale == nullptr) return params.rotary_features;
  return -params.rotary_features - (params.wide_heads ? 1 : 0);
}

}  // namespace

LinearTableKey tableKeyOf(const LinearParams& params, int min_tokens, int max_tokens) {
  const auto present = [](const void* tensor) { return tensor != nullptr ? 1 : 0; };
  return {params.K,
          params.N,
          static_cast<int32_t>(params.activation),
          present(params.bias),
          present(params.residual),
          present(params.x_moments),
          present(params.residual_moments),
          present(params.moments),
          params.gated ? 1 : 0,
          rotationOf(params),
          typesOf(params),
          min_tokens,
          max_tokens};
}

const LinearRange* findUnknown(const LinearTable& table) {
  int32_t before = 0;
  for (const LinearRange& range : table) {
    if (range.tokens <= before || !isLinearChoice(range.choice)) return &range;
    before = range.tokens;
  }
  return nullptr;
}

LinearTable LinearTables::get(int device, const LinearTableKey& key, const std::function<LinearTable()>& measure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = tables_.find({device, key});
  return entry != tables_.end() ? entry->second : tables_.emplace(std::pair(device, key), measure()).first->second;
}

std::string LinearTables::text(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::ostringstream lines;
  for (const auto& [device_and_key, table] : tables_) {
    if (device_and_key.first != device) continue;
    const char* separator = "";
    for (const int32_t number : device_and_key.second) {
      lines << separator << number;
      separator = " ";
    }
    for (const LinearRange& range : table) lines << ' ' << range.tokens << ' ' << range.choice;
    lines << '\n';
  }
  return lines.str();
}

bool LinearTables::take(int device, const std::string& text) {
  std::map<std::pair<int, LinearTableKey>, LinearTable> new_tables;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    LinearTableKey key{};
    LinearTable table;
    if (!parse(line, key, table)) return false;
    new_tables.emplace(std::pair(device, key), std::move(table));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  tables_.merge(new_tables);
  return true;
}

LinearTables& linearTables() {
  static LinearTables tables;
  return tables;
}

}  // namespace padfree

// For builder/linear_tables.py, which keeps tables between builds.

// Returns 1, or 0 where the text is none of padfreeLinearTables and nothing was taken.
extern "C" __attribute__((visibility("default"))) int32_t padfreeTakeLinearTables(int32_t device,
                                                                                  const char* text) noexcept {
  try {
    return padfree::linearTables().take(device, text) ? 1 : 0;
  } catch (...) {
    return 0;  // no memory
  }
}

// Writes the text with its zero where `size` bytes hold it. Returns the bytes needed, 0 where there is no memory.
extern "C" __attribute__((visibility("default"))) int64_t padfreeLinearTables(int32_t device, char* text,
                                                                              int64_t size) noexcept {
  try {
    const std::string tables = padfree::linearTables().text(device);
    const auto needed = static_cast<int64_t>(tables.size()) + 1;
    if (needed <= size) std::memcpy(text, tables.c_str(), tables.size() + 1);
    return needed;
  } catch (...) {
    return 0;
  }
}
