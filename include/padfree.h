/* SPDX-License-Identifier: Apache-2.0 */
/*
 * padfree's kernels for C, C++ and every language that calls C: attention over sequences of any lengths without
 * padding, and conversions between padded and packed tensors. Exported by libpadfree.so, which needs no TensorRT for
 * them.
 *
 * - Packed tensors hold the tokens of all sequences one after the other, [T, ...]. Sequence b has the tokens from
 *   cu_seqlens[b] to cu_seqlens[b + 1] - 1. Tokens from cu_seqlens[B] on are filler and belong to none.
 * - All tensors lie in memory of the current CUDA device. Functions enqueue work on `stream`, a cudaStream_t as void*
 *   (NULL: the legacy default stream), and return at once. They allocate nothing and may be captured in CUDA graphs.
 * - Functions return a padfree_status. Wrong sizes, options and pointers are found on the host before anything is
 *   enqueued. Values on the device are not checked: cu_seqlens must start at 0, never decrease and never exceed T.
 * - Functions may be called from any number of threads.
 * - Structs begin with their size, which the caller sets to sizeof. Later versions append members, in which zero means
 *   what earlier versions did: fill structs with zeros first.
 */
#ifndef PADFREE_H
#define PADFREE_H

#include <stddef.h>
#include <stdint.h>

#define PADFREE_API_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum padfree_status {
  PADFREE_OK = 0,
  PADFREE_INVALID_ARGUMENT = 1, /* a size, an option or a missing pointer */
  PADFREE_MISALIGNED = 2,       /* a pointer or a stride is no multiple of 16 bytes */
  PADFREE_CUDA_ERROR = 3        /* CUDA refused: no device, no kernel for it, an earlier error */
} padfree_status;

typedef enum padfree_type { PADFREE_FLOAT32 = 0, PADFREE_FLOAT16 = 1, PADFREE_BFLOAT16 = 2 } padfree_type;

/* What is added to the score of row i and key j of head h; i and j count from 0 in every sequence. */
typedef enum padfree_bias {
  PADFREE_BIAS_NONE = 0,
  PADFREE_BIAS_SLOPES = 1,      /* -slopes[h] * |j - i| */
  PADFREE_BIAS_DISTANCE = 2,    /* distance_bias[h][t], t = clamp(j - i, -bias_range, bias_range) + bias_range */
  PADFREE_BIAS_DISENTANGLED = 3 /* scale * (q_i . k_position[t] + k_j . q_position[t]) */
} padfree_bias;

/* One of Q, K, V: element (t, h, d) lies at data[t * token_stride + h * head_stride + d]. Strides count elements. */
typedef struct padfree_operand {
  const void* data;
  const void* bias; /* [heads * head_size], added to data; or NULL */
  int64_t token_stride;
  int64_t head_stride;
} padfree_operand;

typedef struct padfree_attention_args {
  size_t struct_size;        /* sizeof(padfree_attention_args) */
  int32_t type;              /* a padfree_type: of q, k, v, their biases, position tables and y; softmax is float32 */
  int32_t num_heads;         /* H */
  int32_t num_kv_heads;      /* of K and V; divides H: head h reads theirs number h / (H / num_kv_heads) */
  int32_t head_size;         /* 8 to 256 in steps of 8; up to 128 with PADFREE_BIAS_DISENTANGLED */
  int32_t num_tokens;        /* T */
  int32_t num_sequences;     /* B */
  int32_t max_seq_len;       /* the longest sequence that is expected, to choose among kernels; 0: unknown */
  float scale;               /* factor of the scores, above 0; 1 / sqrt(head_size) as a rule */
  int32_t window_left;       /* keys before its own that a row sees; -1: all */
  int32_t window_right;      /* keys after its own that a row sees; -1: all, 0: causal */
  padfree_operand q, k, v;   /* [T, H, head_size], and [T, num_kv_heads, head_size] twice */
  const int32_t* cu_seqlens; /* [B + 1] */
  void* y;                   /* [T, H * head_size] without gaps; rows of filler become zeros */
  const void* tasks;         /* of padfree_schedule with the same T, B, H and lengths; NULL: slower on Hopper */
  int64_t tasks_bytes;       /* padfree_task_list_bytes(T, B, H); read where tasks is given */
  int32_t bias;              /* a padfree_bias */
  int32_t bias_range;
  const float* slopes;        /* [H] */
  const float* distance_bias; /* [H, 2 * bias_range + 1] */
  const void* k_position;     /* [2 * bias_range + 1, H * head_size], or NULL */
  const void* q_position;     /* [2 * bias_range + 1, H * head_size], or NULL */
} padfree_attention_args;

typedef struct padfree_schedule_args {
  size_t struct_size;      /* sizeof(padfree_schedule_args) */
  int32_t num_tokens;      /* T */
  int32_t num_sequences;   /* B */
  const int32_t* seq_lens; /* [B]; a negative length counts as 0, and no sum exceeds T */
  int32_t* cu_seqlens;     /* [B + 1] */
  int32_t* positions;      /* [T]: a token's position in its sequence, 0 for filler; or NULL */
  int32_t* token_index;    /* [T]: a token's slot b * max_seq_len + s, -1 for filler; or NULL */
  int32_t max_seq_len;     /* slots of a sequence; read where token_index is given */
  int32_t num_heads;       /* H of the attention that reads tasks; read where tasks is given */
  void* tasks;             /* what blocks of the attention do, for all layers with these heads; or NULL */
  int64_t tasks_bytes;     /* at least padfree_task_list_bytes(T, B, H) */
} padfree_schedule_args;

/* PADFREE_API_VERSION of the library; it takes the structs of all versions up to its own. */
int32_t padfree_api_version(void);

/* padfree's version, such as "0.1.0". */
const char* padfree_version(void);

/* The architectures that it has device code for, such as "80,90a"; "" for none. */
const char* padfree_architectures(void);

/* A status in words; never NULL. */
const char* padfree_status_string(int32_t status);

/* What was wrong with this thread's last call that failed, with the value and what is allowed; "" before. */
const char* padfree_last_error(void);

/* y = softmax(q k^T * scale + bias) v inside each sequence, head and window. */
int32_t padfree_attention(const padfree_attention_args* args, void* stream);

/* Prefix sums of lengths, and on demand positions, slots and the attention's tasks. */
int32_t padfree_schedule(const padfree_schedule_args* args, void* stream);

/* Bytes of a task list; -1 where a size is out of range. */
int64_t padfree_task_list_bytes(int32_t num_tokens, int32_t num_sequences, int32_t num_heads);

/* y[t] = x[token_index[t]] for rows of row_bytes, an even number: [num_slots, ...] to [T, ...]. An index outside of the
 * slots gives zeros. */
int32_t padfree_pack(const void* x, const int32_t* token_index, void* y, int32_t num_tokens, int64_t num_slots,
                     int64_t row_bytes, void* stream);

/* y[token_index[t]] = packed[t], and zeros in all other slots: [T, ...] to [num_slots, ...]. token_index ascends, but
 * for entries outside of the slots, which stand at its end. */
int32_t padfree_unpack(const void* packed, const int32_t* token_index, void* y, int32_t num_tokens, int64_t num_slots,
                       int64_t row_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif
