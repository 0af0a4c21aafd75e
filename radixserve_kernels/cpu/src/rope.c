/* Rotates queries and keys in place, and writes K and V of the step's tokens into their pages. */
#include "ops.h"
#include "pool.h"
#include "simd.h"

#define TASK_NUMBERS 16384 /* of q, k and v, from which on tokens are shared out */

typedef struct {
  float *q, *k;
  const float *v, *turn;
  int64_t q_token, q_head, k_token, k_head, v_token, v_head;
  const void *slots;
  char *pages;
  int64_t is_wide, is_half, page_size, tokens, num_heads, num_kv_heads, size, step;
} call;

static const float signs[RS_LANES] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};

/* Pairs (a, b) times (c, s) as complex numbers: a c - b s, a s + b c, the product with c fused. */
RS_INLINE rs_v turned(rs_v x, rs_v turn) {
  rs_v sine = rs_mul(rs_odd_twice(turn), rs_load(signs));
  return rs_fma(x, rs_even_twice(turn), rs_mul(rs_swap1(x), sine));
}

static void rotate(float *x, const float *turn, int64_t size) {
  int64_t d = 0;
  for (; d + RS_LANES <= size; d += RS_LANES)
    rs_store(x + d, turned(rs_load(x + d), rs_load(turn + d)));
  int rest = (int)(size - d);
  if (rest) rs_store_n(x + d, turned(rs_load_n(x + d, rest), rs_load_n(turn + d, rest)), rest);
}

static void write_vector(void *to, const float *from, int64_t size, int64_t is_half) {
  if (!is_half) {
    memcpy(to, from, (size_t)size * sizeof *from);
    return;
  }
  uint16_t *half = to;
  int64_t d = 0;
  for (; d + RS_LANES <= size; d += RS_LANES) rs_store_f16(half + d, rs_load(from + d));
  if (d < size) {
    uint16_t last[RS_LANES];
    rs_store_f16(last, rs_load_n(from + d, (int)(size - d)));
    memcpy(half + d, last, (size_t)(size - d) * sizeof *last);
  }
}

static int64_t slot_of(const call *c, int64_t t) {
  return c->is_wide ? ((const int64_t *)c->slots)[t] : ((const int32_t *)c->slots)[t];
}

static void do_token(const call *c, int64_t t) {
  const int64_t slot = slot_of(c, t);
  if (c->turn) {
    const float *turn = c->turn + t * c->size;
    for (int64_t h = 0; h < c->num_heads; h++)
      rotate(c->q + t * c->q_token + h * c->q_head, turn, c->size);
    for (int64_t h = 0; h < c->num_kv_heads; h++)
      rotate(c->k + t * c->k_token + h * c->k_head, turn, c->size);
  }
  if (slot < 0) return;
  int64_t vector = c->size * (c->is_half ? 2 : 4), head = c->page_size * vector;
  int64_t page = slot / c->page_size, offset = slot % c->page_size;
  char *to = c->pages + page * 2 * c->num_kv_heads * head + offset * vector;
  for (int64_t h = 0; h < c->num_kv_heads; h++) {
    write_vector(to + h * head, c->k + t * c->k_token + h * c->k_head, c->size, c->is_half);
    write_vector(to + (c->num_kv_heads + h) * head, c->v + t * c->v_token + h * c->v_head, c->size,
                 c->is_half);
  }
}

static void do_tokens(void *context, int64_t task) {
  const call *c = context;
  int64_t end = (task + 1) * c->step;
  for (int64_t t = task * c->step; t < end && t < c->tokens; t++) do_token(c, t);
}

/* Strides of tokens and heads in floats. turn: [tokens, size] as pairs (cosine, sine), or NULL for
 * no rotation. slots: page * page_size + offset, int64_t or if not is_wide int32_t; below 0: K and
 * V are not written. pages: as attention's. */
void RS_NAME(rope_kv_write)(float *q, int64_t q_token, int64_t q_head, float *k, int64_t k_token,
                            int64_t k_head, const float *v, int64_t v_token, int64_t v_head,
                            const float *turn, const void *slots, int64_t is_wide, void *pages,
                            int64_t is_half, int64_t page_size, int64_t tokens, int64_t num_heads,
                            int64_t num_kv_heads, int64_t size) {
  call c = {.q = q,
            .q_token = q_token,
            .q_head = q_head,
            .k = k,
            .k_token = k_token,
            .k_head = k_head,
            .v = v,
            .v_token = v_token,
            .v_head = v_head,
            .turn = turn,
            .slots = slots,
            .is_wide = is_wide,
            .pages = pages,
            .is_half = is_half,
            .page_size = page_size,
            .tokens = tokens,
            .num_heads = num_heads,
            .num_kv_heads = num_kv_heads,
            .size = size};
  c.step = 1 + TASK_NUMBERS / ((num_heads + 2 * num_kv_heads) * size);
  rs_parallel(do_tokens, &c, (tokens + c.step - 1) / c.step);
}
