// SPDX-License-Identifier: Apache-2.0
#include "text/frames.h"

#include <algorithm>

namespace padfree {
namespace {

// One row into `ids`, and the number of ids that belong to its first segment. Returns its count, or a TextState.
int32_t lookUpRow(const WordTable& table, const Request& request, const char* bytes, const int64_t* sizes,
                  std::vector<int32_t>& ids, size_t& first) {
  ids.clear();
  first = 0;
  const int32_t* frame = request.frame;
  int32_t frame_size = 0;
  for (int32_t segment = 0; segment <= request.segments; ++segment) frame_size += request.frame_sizes[segment];
  for (int32_t segment = 0; segment < request.segments; ++segment) {
    if (sizes[segment] < 0) return static_cast<int32_t>(TextState::kUnusual);
    ids.insert(ids.end(), frame, frame + request.frame_sizes[segment]);
    frame += request.frame_sizes[segment];
    if (segment == 1) first = ids.size();  // what stands between belongs to the first
    const int32_t id_count = table.lookUp({bytes, static_cast<size_t>(sizes[segment])}, ids);
    if (id_count < 0) return id_count;
    bytes += sizes[segment] + 1;
  }
  const bool is_too_long =
      request.max_tokens >= 0 &&
      ids.size() + static_cast<size_t>(request.frame_sizes[request.segments]) > static_cast<size_t>(request.max_tokens);
  if (is_too_long && request.segments > 1) return static_cast<int32_t>(TextState::kTooLong);
  if (is_too_long) ids.resize(request.frame_sizes[0] + std::max(0, request.max_tokens - frame_size));
  ids.insert(ids.end(), frame, frame + request.frame_sizes[request.segments]);
  if (request.segments == 1) first = ids.size();
  return static_cast<int32_t>(ids.size());
}

}  // namespace

int64_t lookUpRows(const WordTable& table, const Request& request) {
  const auto reading = table.reading();
  std::vector<int32_t> ids;
  const char* bytes = request.bytes;
  int64_t id_total = 0;
  for (int32_t row = 0; row < request.rows; ++row) {
    const int64_t* sizes = request.sizes + static_cast<int64_t>(row) * request.segments;
    size_t first = 0;
    const int32_t count = lookUpRow(table, request, bytes, sizes, ids, first);
    for (int32_t segment = 0; segment < request.segments; ++segment) {
      bytes += std::max<int64_t>(sizes[segment], 0) + 1;
    }
    request.counts[row] = count;
    if (count < 0) continue;
    if (id_total + count <= request.capacity) {
      std::copy(ids.begin(), ids.end(), request.ids + id_total);
      if (request.types != nullptr) {
        std::fill(request.types + id_total, request.types + id_total + first, 0);
        std::fill(request.types + id_total + first, request.types + id_total + count, 1);
      }
    }
    id_total += count;
  }
  return id_total <= request.capacity ? id_total : -id_total;
}

}  // namespace padfree
