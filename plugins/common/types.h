// SPDX-License-Identifier: Apache-2.0
// Types that launchers and TensorRT shells share. No TensorRT header, no device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace padfree {

enum class DataType : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kInt32 = 3 };

constexpr int sizeOf(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kInt32 ? 4 : 2;
}

}  // namespace padfree
