// SPDX-License-Identifier: Apache-2.0
#include "backend/made_requests.h"

#include <algorithm>
#include <cstring>

namespace made {

std::atomic<int> right{0}, refused{0}, cancelled{0}, failed{0};

void append(core::Tensor& tensor, const char* bytes, uint64_t size, bool on_device, Random& random) {
  tensor.bytes = size;
  for (uint64_t at = 0; at < size;) {
    // Mostly one piece; others may end anywhere.
    const uint64_t piece = random() % 4 != 0 ? size - at : std::min<uint64_t>(size - at, 1 + random() % size);
    tensor.buffers.push_back({std::make_unique<char[]>(piece), piece, on_device});
    std::memcpy(tensor.buffers.back().data.get(), bytes + at, piece);
    at += piece;
  }
}

void count(const core::Request& request, const core::Answer& answer, bool is_right) {
  if (!answer.is_error) {
    if (!is_right) core::fail("a wrong answer");
    ++right;
  } else if (answer.code == TRITONSERVER_ERROR_CANCELLED) {
    if (!request.is_cancelled) core::fail("cancelled by nobody");
    ++cancelled;
  } else {
    if (core::fail_every == 0) core::fail("an error to a good request: " + answer.message);
    ++failed;
  }
}

std::vector<int64_t> hostileShape(Random& random) {
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
  return kShapes[random() % kShapes.size()];
}

}  // namespace made
