// SPDX-License-Identifier: Apache-2.0
// Tensor maps for TMA, made on the host (CUDA driver API, "Tensor Map Object Management").
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

// The driver's cuTensorMapEncodeTiled, found at run time: the library links no driver. Null where it is missing.
inline decltype(&cuTensorMapEncodeTiled) findEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
  const bool found = status == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return found ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function) : nullptr;
}

// A dense matrix [rows, columns] of fp16 or bf16, columns a multiple of 8, in boxes [box_rows, box_columns] of at most
// 256 rows and 128 bytes a row, swizzled by 128 bytes in shared memory. Reads outside give zeros, writes outside
// nothing.
inline bool encodeMatrix(CUtensorMap& map, DataType type, const void* data, uint64_t rows, uint64_t columns,
                         uint32_t box_rows, uint32_t box_columns) {
  static const auto encodeTiled = findEncodeTiled();
  if (!encodeTiled) return false;
  const cuuint64_t sizes[] = {columns, rows};
  const cuuint64_t strides[] = {columns * sizeOf(type)};
  const cuuint32_t box[] = {box_columns, box_rows}, steps[] = {1, 1};
  const auto element = type == DataType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encodeTiled(&map, element, 2, const_cast<void*>(data), sizes, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace padfree
