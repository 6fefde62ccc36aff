// SPDX-License-Identifier: Apache-2.0
// Tensor maps for TMA, made on the host (CUDA driver API, "Tensor Map Object Management").
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "common/types.h"

namespace padfree {

// Looks up the driver's cuTensorMapEncodeTiled: the library links no driver. Null where the driver has none.
inline decltype(&cuTensorMapEncodeTiled) findEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  constexpr char kName[] = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion(kName, &function, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &result);
#endif
  const bool is_available = status == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return is_available ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function) : nullptr;
}

// The same, looked up once.
inline decltype(&cuTensorMapEncodeTiled) encodeTiledOfDriver() {
  static const auto function = findEncodeTiled();
  return function;
}

// What a launcher returns where a map could not be made.
inline cudaError_t mapError() {
  return encodeTiledOfDriver() ? cudaErrorInvalidValue : cudaErrorCallRequiresNewerDriver;
}

// For fp16 or bf16.
inline CUtensorMapDataType elementOf(DataType type) {
  return type == DataType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

// A map of elements in boxes whose rows (dimension 0) are at most as wide as the swizzle. Dimension 0 is the
// innermost; strides are in bytes, from dimension 1 on. Reads outside of the tensor give zeros, writes outside of it
// are dropped.
template <int kRank>
bool encodeBoxes(CUtensorMap& map, CUtensorMapDataType element, const void* data, const cuuint64_t (&sizes)[kRank],
                 const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank],
                 CUtensorMapL2promotion promotion, CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  const auto encodeTiled = encodeTiledOfDriver();
  if (!encodeTiled) return false;
  cuuint32_t steps[kRank];
  for (cuuint32_t& step : steps) step = 1;
  return encodeTiled(&map, element, kRank, const_cast<void*>(data), sizes, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// A dense matrix [rows, columns], columns a multiple of 8, in boxes [box_rows, box_columns] of at most 256 rows.
inline bool encodeMatrix(CUtensorMap& map, DataType type, const void* data, uint64_t rows, uint64_t columns,
                         uint32_t box_rows, uint32_t box_columns,
                         CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  return encodeBoxes<2>(map, elementOf(type), data, {columns, rows}, {columns * sizeOf(type)}, {box_columns, box_rows},
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, swizzle);
}

// The same for elements of one byte, columns a multiple of 16.
inline bool encodeByteMatrix(CUtensorMap& map, const void* data, uint64_t rows, uint64_t columns, uint32_t box_rows,
                             uint32_t box_columns, CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  return encodeBoxes<2>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, data, {columns, rows}, {columns}, {box_columns, box_rows},
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, swizzle);
}

}  // namespace padfree
