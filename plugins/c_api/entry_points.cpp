// SPDX-License-Identifier: Apache-2.0
// include/padfree.h: checks what callers pass on the host, and hands it to the launchers. Nothing here throws.
#include "padfree.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "attention/launch.h"
#include "common/launch.h"
#include "pack/launch.h"
#include "schedule/launch.h"
#include "shell/device_code.h"
#include "unpack/launch.h"

#define PADFREE_ENTRY extern "C" __attribute__((visibility("default")))

namespace padfree {
namespace {

constexpr int64_t kMaxStride = int64_t{1} << 36;  // in bytes far below what a tensor map takes
constexpr int kMaxBiasRange = 65536;

thread_local char last_error[512] = "";

[[gnu::format(printf, 2, 3)]] int32_t fail(padfree_status status, const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::vsnprintf(last_error, sizeof last_error, format, values);
  va_end(values);
  return status;
}

int32_t statusOf(const char* function, cudaError_t status) {
  if (status == cudaSuccess) return PADFREE_OK;
  const char* const has_code = *architectures() ? "code for " : "no device code";
  return fail(PADFREE_CUDA_ERROR, "%s: CUDA error %d, %s%s%s%s%s", function, static_cast<int>(status),
              cudaGetErrorString(status), lacksCode(status) ? "; the library has " : "",
              lacksCode(status) ? has_code : "", lacksCode(status) ? architectures() : "", nextStepOf(status));
}

int32_t failMissing(const char* function, const char* name) {
  return fail(PADFREE_INVALID_ARGUMENT, "%s: %s is NULL; pass memory of the device", function, name);
}

int32_t failOutOfRange(const char* function, const char* name, int64_t value, const char* allowed) {
  return fail(PADFREE_INVALID_ARGUMENT, "%s: %s is %lld; allowed: %s", function, name, static_cast<long long>(value),
              allowed);
}

int32_t failMisaligned(const char* function, const char* name) {
  return fail(PADFREE_MISALIGNED, "%s: %s does not lie at a multiple of 16 bytes; allocate it by itself", function,
              name);
}

int32_t failStructSize(const char* function, size_t actual, size_t expected) {
  return fail(PADFREE_INVALID_ARGUMENT,
              "%s: struct_size is %zu; allowed: %zu; set it to sizeof the struct, and use padfree.h of this library",
              function, actual, expected);
}

// The bytes of a task list, -1 where a size is out of range.
int64_t taskListBytes(int64_t T, int64_t B, int64_t H) {
  if (T < 0 || B < 0 || H < 1 || H > kMaxTaskHeads) return -1;
  const int64_t entries = taskListEntries(T, B, H);
  return entries > INT32_MAX ? -1 : entries * static_cast<int64_t>(sizeof(AttentionTask));
}

int32_t checkTasks(const char* function, const void* tasks, int64_t bytes, int64_t T, int64_t B, int64_t H) {
  if (!tasks) return PADFREE_OK;
  const int64_t min_bytes = taskListBytes(T, B, H);
  if (min_bytes < 0)
    return failOutOfRange(function, "num_heads", H, "1 to 4096, and fewer for so many tokens and sequences");
  if (bytes < min_bytes) {
    return fail(PADFREE_INVALID_ARGUMENT, "%s: tasks_bytes is %lld; allowed: %lld or more (padfree_task_list_bytes)",
                function, static_cast<long long>(bytes), static_cast<long long>(min_bytes));
  }
  return isAligned16(tasks) ? PADFREE_OK : failMisaligned(function, "tasks");
}

int32_t checkOperand(const char* name, const padfree_operand& operand, const padfree_attention_args& args) {
  constexpr const char* kFunction = "padfree_attention";
  if (!operand.data) return failMissing(kFunction, name);
  if (!isAligned16(operand.data) || !isAligned16(operand.bias)) return failMisaligned(kFunction, name);
  const int64_t element = sizeOf(static_cast<DataType>(args.type));
  for (const int64_t stride : {operand.token_stride, operand.head_stride}) {
    if (stride < args.head_size || stride > kMaxStride) {
      return fail(PADFREE_INVALID_ARGUMENT, "%s: %s has a stride of %lld elements; allowed: head_size = %d to 2^36",
                  kFunction, name, static_cast<long long>(stride), static_cast<int>(args.head_size));
    }
    if (!isAligned(stride * element, 16)) {
      return fail(PADFREE_MISALIGNED, "%s: %s has a stride of %lld elements; allowed: multiples of 16 bytes", kFunction,
                  name, static_cast<long long>(stride));
    }
  }
  return PADFREE_OK;
}

int32_t checkBias(const padfree_attention_args& args) {
  constexpr const char* kFunction = "padfree_attention";
  switch (args.bias) {
    case PADFREE_BIAS_NONE:
      return PADFREE_OK;
    case PADFREE_BIAS_SLOPES:
      return args.slopes ? PADFREE_OK : failMissing(kFunction, "slopes");
    case PADFREE_BIAS_DISTANCE:
      if (!args.distance_bias) return failMissing(kFunction, "distance_bias");
      break;
    case PADFREE_BIAS_DISENTANGLED:
      if (args.num_kv_heads != args.num_heads) {
        return failOutOfRange(kFunction, "num_kv_heads", args.num_kv_heads, "num_heads with a disentangled bias");
      }
      if (args.head_size > kMaxDisentangledHeadSize) {
        return failOutOfRange(kFunction, "head_size", args.head_size, "up to 128 with a disentangled bias");
      }
      if (args.window_left >= 0 || args.window_right >= 0) {
        return fail(PADFREE_INVALID_ARGUMENT, "%s: the window is (%d, %d); allowed: (-1, -1) with a disentangled bias",
                    kFunction, static_cast<int>(args.window_left), static_cast<int>(args.window_right));
      }
      if (!isAligned16(args.k_position)) return failMisaligned(kFunction, "k_position");
      if (!isAligned16(args.q_position)) return failMisaligned(kFunction, "q_position");
      break;
    default:
      return failOutOfRange(kFunction, "bias", args.bias, "0 to 3, as padfree_bias has them");
  }
  if (args.bias_range < 0 || args.bias_range > kMaxBiasRange) {
    return failOutOfRange(kFunction, "bias_range", args.bias_range, "0 to 65536");
  }
  return PADFREE_OK;
}

int32_t checkAttention(const padfree_attention_args& args) {
  constexpr const char* kFunction = "padfree_attention";
  if (args.struct_size != sizeof args) return failStructSize(kFunction, args.struct_size, sizeof args);
  if (args.type < PADFREE_FLOAT32 || args.type > PADFREE_BFLOAT16) {
    return failOutOfRange(kFunction, "type", args.type, "0 to 2, as padfree_type has them");
  }
  if (args.num_heads < 1 || args.num_heads > kMaxTaskHeads) {
    return failOutOfRange(kFunction, "num_heads", args.num_heads, "1 to 4096");
  }
  if (args.num_kv_heads < 1 || args.num_heads % args.num_kv_heads != 0) {
    return failOutOfRange(kFunction, "num_kv_heads", args.num_kv_heads, "divisors of num_heads");
  }
  if (args.head_size < 8 || args.head_size > kMaxHeadSize || args.head_size % 8 != 0) {
    return failOutOfRange(kFunction, "head_size", args.head_size, "8 to 256 in steps of 8");
  }
  if (args.num_tokens < 0) return failOutOfRange(kFunction, "num_tokens", args.num_tokens, "0 or more");
  if (args.num_sequences < 0) return failOutOfRange(kFunction, "num_sequences", args.num_sequences, "0 or more");
  if (attentionBlocks(args.num_tokens, args.num_sequences, args.num_heads) > kMaxGridX) {
    return failOutOfRange(kFunction, "num_tokens", args.num_tokens, "fewer for so many heads and sequences");
  }
  if (args.max_seq_len < 0) return failOutOfRange(kFunction, "max_seq_len", args.max_seq_len, "0 or more");
  if (!(args.scale > 0.f) || !std::isfinite(args.scale)) {
    return fail(PADFREE_INVALID_ARGUMENT, "%s: scale is %g; allowed: finite numbers above 0", kFunction,
                static_cast<double>(args.scale));
  }
  if (args.window_left < -1) return failOutOfRange(kFunction, "window_left", args.window_left, "-1 or more");
  if (args.window_right < -1) return failOutOfRange(kFunction, "window_right", args.window_right, "-1 or more");
  if (const int32_t status = checkBias(args)) return status;
  if (args.num_tokens == 0) return PADFREE_OK;
  if (const int32_t status = checkOperand("q", args.q, args)) return status;
  if (const int32_t status = checkOperand("k", args.k, args)) return status;
  if (const int32_t status = checkOperand("v", args.v, args)) return status;
  if (!args.cu_seqlens) return failMissing(kFunction, "cu_seqlens");
  if (!args.y) return failMissing(kFunction, "y");
  if (!isAligned16(args.y)) return failMisaligned(kFunction, "y");
  return checkTasks(kFunction, args.tasks, args.tasks_bytes, args.num_tokens, args.num_sequences, args.num_heads);
}

AttentionOperand operandOf(const padfree_operand& operand, int64_t head_size) {
  return {operand.data, operand.bias, operand.token_stride, operand.head_stride, head_size};
}

int32_t checkSchedule(const padfree_schedule_args& args) {
  constexpr const char* kFunction = "padfree_schedule";
  if (args.struct_size != sizeof args) return failStructSize(kFunction, args.struct_size, sizeof args);
  if (args.num_tokens < 0) return failOutOfRange(kFunction, "num_tokens", args.num_tokens, "0 or more");
  if (args.num_sequences < 0) return failOutOfRange(kFunction, "num_sequences", args.num_sequences, "0 or more");
  if (!args.seq_lens && args.num_sequences > 0) return failMissing(kFunction, "seq_lens");
  if (!args.cu_seqlens) return failMissing(kFunction, "cu_seqlens");
  if (args.token_index && (args.max_seq_len < 1 || int64_t{args.max_seq_len} * args.num_sequences > INT32_MAX)) {
    return failOutOfRange(kFunction, "max_seq_len", args.max_seq_len, "1 or more, and all slots below 2^31");
  }
  return checkTasks(kFunction, args.tasks, args.tasks_bytes, args.num_tokens, args.num_sequences, args.num_heads);
}

// `rows`, called so by the caller, are read; y is written.
int32_t checkRows(const char* function, const char* rows_name, const void* rows, const void* token_index, const void* y,
                  int64_t num_tokens, int64_t num_slots, int64_t row_bytes) {
  if (num_tokens < 0) return failOutOfRange(function, "num_tokens", num_tokens, "0 or more");
  if (num_slots < 0 || num_slots > INT32_MAX) return failOutOfRange(function, "num_slots", num_slots, "0 to 2^31 - 1");
  if (row_bytes < 2 || row_bytes % 2 != 0 || row_bytes > INT32_MAX) {
    return failOutOfRange(function, "row_bytes", row_bytes, "even numbers from 2 to 2^31 - 2");
  }
  if (!rows && num_tokens > 0) return failMissing(function, rows_name);
  if (!token_index && num_tokens > 0) return failMissing(function, "token_index");
  if (!y) return failMissing(function, "y");
  if (!isAligned16(rows)) return failMisaligned(function, rows_name);
  if (!isAligned16(y)) return failMisaligned(function, "y");
  return PADFREE_OK;
}

}  // namespace
}  // namespace padfree

using namespace padfree;

PADFREE_ENTRY int32_t padfree_api_version(void) {
  return PADFREE_API_VERSION;
}

PADFREE_ENTRY const char* padfree_version(void) {
  return PADFREE_VERSION;
}

PADFREE_ENTRY const char* padfree_architectures(void) {
  return architectures();
}

PADFREE_ENTRY const char* padfree_status_string(int32_t status) {
  switch (status) {
    case PADFREE_OK:
      return "success";
    case PADFREE_INVALID_ARGUMENT:
      return "an argument is not allowed";
    case PADFREE_MISALIGNED:
      return "a pointer or a stride is no multiple of 16 bytes";
    case PADFREE_CUDA_ERROR:
      return "CUDA returned an error";
    default:
      return "no status of padfree";
  }
}

PADFREE_ENTRY const char* padfree_last_error(void) {
  return last_error;
}

PADFREE_ENTRY int64_t padfree_task_list_bytes(int32_t num_tokens, int32_t num_sequences, int32_t num_heads) {
  return taskListBytes(num_tokens, num_sequences, num_heads);
}

PADFREE_ENTRY int32_t padfree_attention(const padfree_attention_args* args, void* stream) {
  if (!args) return failMissing("padfree_attention", "args");
  if (const int32_t status = checkAttention(*args)) return status;
  AttentionParams params{};
  params.q = operandOf(args->q, args->head_size);
  params.k = operandOf(args->k, args->head_size);
  params.v = operandOf(args->v, args->head_size);
  params.cu_seqlens = args->cu_seqlens;
  if (args->tasks) {
    params.tasks = static_cast<const AttentionTask*>(args->tasks);
    params.num_tasks = taskListRoom(args->num_tokens, args->num_sequences, args->num_heads);
  }
  params.y = args->y;
  params.T = args->num_tokens;
  params.B = args->num_sequences;
  params.H = args->num_heads;
  params.D = args->head_size;
  params.max_seq_len = args->max_seq_len;
  params.scale = args->scale;
  params.type = static_cast<DataType>(args->type);
  params.kv_heads = args->num_kv_heads;
  params.window_left = args->window_left;
  params.window_right = args->window_right;
  params.bias = static_cast<AttentionBias>(args->bias);
  params.bias_range = args->bias_range;
  params.slopes = args->slopes;
  params.distance_bias = args->distance_bias;
  params.k_position = args->k_position;
  params.q_position = args->q_position;
  return statusOf("padfree_attention", launchAttention(params, static_cast<cudaStream_t>(stream)));
}

PADFREE_ENTRY int32_t padfree_schedule(const padfree_schedule_args* args, void* stream) {
  if (!args) return failMissing("padfree_schedule", "args");
  if (const int32_t status = checkSchedule(*args)) return status;
  ScheduleParams params{};
  params.seq_lens = args->seq_lens;
  params.cu_seqlens = args->cu_seqlens;
  params.token_index = args->token_index;
  params.positions = args->positions;
  params.B = args->num_sequences;
  params.T = args->num_tokens;
  params.S = args->max_seq_len;
  if (args->tasks) {
    params.tasks = static_cast<AttentionTask*>(args->tasks);
    params.H = args->num_heads;
    params.num_tasks = taskListRoom(args->num_tokens, args->num_sequences, args->num_heads);
  }
  return statusOf("padfree_schedule", launchSchedule(params, static_cast<cudaStream_t>(stream)));
}

PADFREE_ENTRY int32_t padfree_pack(const void* x, const int32_t* token_index, void* y, int32_t num_tokens,
                                   int64_t num_slots, int64_t row_bytes, void* stream) {
  constexpr const char* kFunction = "padfree_pack";
  if (num_tokens == 0) return PADFREE_OK;
  if (const int32_t status = checkRows(kFunction, "x", x, token_index, y, num_tokens, num_slots, row_bytes))
    return status;
  return statusOf(kFunction,
                  launchPack({x, token_index, y, num_tokens, num_slots, row_bytes}, static_cast<cudaStream_t>(stream)));
}

PADFREE_ENTRY int32_t padfree_unpack(const void* packed, const int32_t* token_index, void* y, int32_t num_tokens,
                                     int64_t num_slots, int64_t row_bytes, void* stream) {
  constexpr const char* kFunction = "padfree_unpack";
  if (num_slots == 0) return PADFREE_OK;
  if (const int32_t status = checkRows(kFunction, "packed", packed, token_index, y, num_tokens, num_slots, row_bytes)) {
    return status;
  }
  return statusOf(kFunction, launchUnpack({packed, token_index, y, num_tokens, num_slots, row_bytes},
                                          static_cast<cudaStream_t>(stream)));
}
