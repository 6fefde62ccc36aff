// SPDX-License-Identifier: Apache-2.0
// include/padfree.h: checks what callers pass on the host, and hands it to the launchers. Nothing throws out of it.
#include "padfree.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "attention/launch.h"
#include "common/launch.h"
#include "common/text.h"
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

// Why a call is refused.
struct Refusal {
  padfree_status status;
  std::string reason;
};

template <class... Parts>
[[noreturn]] void refuse(padfree_status status, const Parts&... reason) {
  throw Refusal{status, text(reason...)};
}

// A call of a function: `body` throws Refusal, or gives the status of its launch.
template <class Body>
int32_t call(const char* function, const Body& body) noexcept {
  try {
    const cudaError_t status = body();
    if (status == cudaSuccess) return PADFREE_OK;
    const std::string code = *architectures() ? text("code for ", architectures()) : "no device code";
    refuse(PADFREE_CUDA_ERROR, "CUDA error ", static_cast<int>(status), ", ", cudaGetErrorString(status),
           lacksCode(status) ? "; the library has " + code : "", nextStepOf(status));
  } catch (const Refusal& refusal) {
    std::snprintf(last_error, sizeof last_error, "%s: %s", function, refusal.reason.c_str());
    return refusal.status;
  } catch (...) {
    std::snprintf(last_error, sizeof last_error, "%s: out of memory", function);
    return PADFREE_CUDA_ERROR;
  }
}

void require(bool holds, const char* name, int64_t value, const char* allowed) {
  if (!holds) refuse(PADFREE_INVALID_ARGUMENT, name, " is ", value, "; allowed: ", allowed);
}

void requireGiven(const char* name, const void* memory) {
  if (!memory) refuse(PADFREE_INVALID_ARGUMENT, name, " is NULL; pass memory of the device");
}

void requireAligned(const char* name, const void* memory) {
  if (isAligned16(memory)) return;
  refuse(PADFREE_MISALIGNED, name, " does not lie at a multiple of 16 bytes; allocate it by itself");
}

template <class Args>
void checkSize(const Args* args) {
  if (!args) refuse(PADFREE_INVALID_ARGUMENT, "args is NULL; pass a struct in host memory");
  if (args->struct_size == sizeof *args) return;
  refuse(PADFREE_INVALID_ARGUMENT, "struct_size is ", args->struct_size, "; allowed: ", sizeof *args,
         "; set it to sizeof the struct, and use padfree.h of this library");
}

// The bytes of a task list, -1 where a size is out of range.
int64_t taskListBytes(int64_t T, int64_t B, int64_t H) {
  if (T < 0 || B < 0 || H < 1 || H > kMaxTaskHeads) return -1;
  const int64_t entries = taskListEntries(T, B, H);
  return entries > INT32_MAX ? -1 : entries * static_cast<int64_t>(sizeof(AttentionTask));
}

void checkTasks(const void* tasks, int64_t bytes, int64_t T, int64_t B, int64_t H) {
  if (!tasks) return;
  const int64_t min_bytes = taskListBytes(T, B, H);
  require(min_bytes >= 0, "num_heads", H, "1 to 4096, and fewer for so many tokens and sequences");
  if (bytes < min_bytes) {
    refuse(PADFREE_INVALID_ARGUMENT, "tasks_bytes is ", bytes, "; allowed: ", min_bytes,
           " or more (padfree_task_list_bytes)");
  }
  requireAligned("tasks", tasks);
}

void checkOperand(const char* name, const padfree_operand& operand, const padfree_attention_args& args) {
  requireGiven(name, operand.data);
  requireAligned(name, operand.data);
  requireAligned(name, operand.bias);
  const int64_t element = sizeOf(static_cast<DataType>(args.type));
  for (const int64_t stride : {operand.token_stride, operand.head_stride}) {
    if (stride < args.head_size || stride > kMaxStride) {
      refuse(PADFREE_INVALID_ARGUMENT, name, " has a stride of ", stride,
             " elements; allowed: head_size = ", args.head_size, " to 2^36");
    }
    if (!isAligned(stride * element, 16)) {
      refuse(PADFREE_MISALIGNED, name, " has a stride of ", stride, " elements; allowed: multiples of 16 bytes");
    }
  }
}

void checkBias(const padfree_attention_args& args) {
  switch (args.bias) {
    case PADFREE_BIAS_NONE:
      return;
    case PADFREE_BIAS_SLOPES:
      return requireGiven("slopes", args.slopes);
    case PADFREE_BIAS_DISTANCE:
      requireGiven("distance_bias", args.distance_bias);
      break;
    case PADFREE_BIAS_DISENTANGLED:
      require(args.num_kv_heads == args.num_heads, "num_kv_heads", args.num_kv_heads,
              "num_heads with a disentangled bias");
      require(args.head_size <= kMaxDisentangledHeadSize, "head_size", args.head_size,
              "up to 128 with a disentangled bias");
      if (args.window_left >= 0 || args.window_right >= 0) {
        refuse(PADFREE_INVALID_ARGUMENT, "the window is (", args.window_left, ", ", args.window_right,
               "); allowed: (-1, -1) with a disentangled bias");
      }
      requireAligned("k_position", args.k_position);
      requireAligned("q_position", args.q_position);
      break;
    default:
      require(false, "bias", args.bias, "0 to 3, as padfree_bias has them");
  }
  require(args.bias_range >= 0 && args.bias_range <= kMaxBiasRange, "bias_range", args.bias_range, "0 to 65536");
}

void checkAttention(const padfree_attention_args& args) {
  require(args.type >= PADFREE_FLOAT32 && args.type <= PADFREE_BFLOAT16, "type", args.type,
          "0 to 2, as padfree_type has them");
  require(args.num_heads >= 1 && args.num_heads <= kMaxTaskHeads, "num_heads", args.num_heads, "1 to 4096");
  require(args.num_kv_heads >= 1 && args.num_heads % args.num_kv_heads == 0, "num_kv_heads", args.num_kv_heads,
          "divisors of num_heads");
  require(args.head_size >= 8 && args.head_size <= kMaxHeadSize && args.head_size % 8 == 0, "head_size", args.head_size,
          "8 to 256 in steps of 8");
  require(args.num_tokens >= 0, "num_tokens", args.num_tokens, "0 or more");
  require(args.num_sequences >= 0, "num_sequences", args.num_sequences, "0 or more");
  require(attentionBlocks(args.num_tokens, args.num_sequences, args.num_heads) <= kMaxGridX, "num_tokens",
          args.num_tokens, "fewer for so many heads and sequences");
  require(args.max_seq_len >= 0, "max_seq_len", args.max_seq_len, "0 or more");
  if (!(args.scale > 0.f) || !std::isfinite(args.scale)) {
    refuse(PADFREE_INVALID_ARGUMENT, "scale is ", args.scale, "; allowed: finite numbers above 0");
  }
  require(args.window_left >= -1, "window_left", args.window_left, "-1 or more");
  require(args.window_right >= -1, "window_right", args.window_right, "-1 or more");
  checkBias(args);
  if (args.num_tokens == 0) return;
  checkOperand("q", args.q, args);
  checkOperand("k", args.k, args);
  checkOperand("v", args.v, args);
  requireGiven("cu_seqlens", args.cu_seqlens);
  requireGiven("y", args.y);
  requireAligned("y", args.y);
  checkTasks(args.tasks, args.tasks_bytes, args.num_tokens, args.num_sequences, args.num_heads);
}

AttentionOperand operandOf(const padfree_operand& operand, int64_t head_size) {
  return {operand.data, operand.bias, operand.token_stride, operand.head_stride, head_size};
}

void checkSchedule(const padfree_schedule_args& args) {
  require(args.num_tokens >= 0, "num_tokens", args.num_tokens, "0 or more");
  require(args.num_sequences >= 0, "num_sequences", args.num_sequences, "0 or more");
  if (args.num_sequences > 0) requireGiven("seq_lens", args.seq_lens);
  requireGiven("cu_seqlens", args.cu_seqlens);
  require(!args.token_index || (args.max_seq_len >= 1 && int64_t{args.max_seq_len} * args.num_sequences <= INT32_MAX),
          "max_seq_len", args.max_seq_len, "1 or more, and all slots below 2^31");
  checkTasks(args.tasks, args.tasks_bytes, args.num_tokens, args.num_sequences, args.num_heads);
}

// `rows`, called so by the caller, are read; y is written.
void checkRows(const char* rows_name, const void* rows, const void* token_index, const void* y, int64_t num_tokens,
               int64_t num_slots, int64_t row_bytes) {
  require(num_tokens >= 0, "num_tokens", num_tokens, "0 or more");
  require(num_slots >= 0 && num_slots <= INT32_MAX, "num_slots", num_slots, "0 to 2^31 - 1");
  require(row_bytes >= 2 && row_bytes % 2 == 0 && row_bytes <= INT32_MAX, "row_bytes", row_bytes,
          "even numbers from 2 to 2^31 - 2");
  if (num_tokens > 0) requireGiven(rows_name, rows);
  if (num_tokens > 0) requireGiven("token_index", token_index);
  requireGiven("y", y);
  requireAligned(rows_name, rows);
  requireAligned("y", y);
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
  return call("padfree_attention", [&] {
    checkSize(args);
    checkAttention(*args);
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
    return launchAttention(params, static_cast<cudaStream_t>(stream));
  });
}

PADFREE_ENTRY int32_t padfree_schedule(const padfree_schedule_args* args, void* stream) {
  return call("padfree_schedule", [&] {
    checkSize(args);
    checkSchedule(*args);
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
    return launchSchedule(params, static_cast<cudaStream_t>(stream));
  });
}

PADFREE_ENTRY int32_t padfree_pack(const void* x, const int32_t* token_index, void* y, int32_t num_tokens,
                                   int64_t num_slots, int64_t row_bytes, void* stream) {
  if (num_tokens == 0) return PADFREE_OK;
  return call("padfree_pack", [&] {
    checkRows("x", x, token_index, y, num_tokens, num_slots, row_bytes);
    return launchPack({x, token_index, y, num_tokens, num_slots, row_bytes}, static_cast<cudaStream_t>(stream));
  });
}

PADFREE_ENTRY int32_t padfree_unpack(const void* packed, const int32_t* token_index, void* y, int32_t num_tokens,
                                     int64_t num_slots, int64_t row_bytes, void* stream) {
  if (num_slots == 0) return PADFREE_OK;
  return call("padfree_unpack", [&] {
    checkRows("packed", packed, token_index, y, num_tokens, num_slots, row_bytes);
    return launchUnpack({packed, token_index, y, num_tokens, num_slots, row_bytes}, static_cast<cudaStream_t>(stream));
  });
}
