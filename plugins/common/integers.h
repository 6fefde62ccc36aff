// SPDX-License-Identifier: Apache-2.0
// Arithmetic of sizes, on the host and in kernels.
#pragma once

namespace padfree {

template <typename Integer>
constexpr Integer ceilDiv(Integer a, Integer b) {
  return (a + b - 1) / b;
}

}  // namespace padfree
