/* RMSNorm: one task is some tokens; a row's sum has an order that its size alone decides. */
#include <math.h>

#include "ops.h"
#include "pool.h"
#include "simd.h"

#define TASK_FLOATS 16384
#define CHAINS 4 /* sums in flight */

struct norm {
  const float *x, *weight;
  float *residual, *out;
  int64_t x_token, x_head, tokens, heads, size, tokens_a_task;
  float eps;
};

/* 16 values of the row from i on, zeros beyond its end; added into the residual if there is one. */
RS_INLINE rs_v summed(const float *x, float *residual, int64_t i, int64_t size) {
  int left = size - i < RS_LANES ? (int)(size - i) : RS_LANES;
  rs_v value = left == RS_LANES ? rs_load(x + i) : rs_load_n(x + i, left);
  if (!residual) return value;
  if (left == RS_LANES) {
    value = rs_add(rs_load(residual + i), value);
    rs_store(residual + i, value);
  } else {
    value = rs_add(rs_load_n(residual + i, left), value);
    rs_store_n(residual + i, value, left);
  }
  return value;
}

static void norm_row(const float *x, const float *weight, float *residual, float *out,
                     int64_t size, float eps) {
  rs_v squares[CHAINS];
  for (int c = 0; c < CHAINS; c++) squares[c] = rs_zero();
  for (int64_t i = 0; i < size; i += CHAINS * RS_LANES) {
    for (int c = 0; c < CHAINS && i + c * RS_LANES < size; c++) {
      rs_v value = summed(x, residual, i + c * RS_LANES, size);
      squares[c] = rs_fma(value, value, squares[c]);
    }
  }
  rs_v both = rs_add(rs_add(squares[0], squares[1]), rs_add(squares[2], squares[3]));
  rs_v scale = rs_set1(1.0f / sqrtf(rs_sum(both) / (float)size + eps));
  const float *from = residual ? residual : x;
  int64_t i = 0;
  for (; i + RS_LANES <= size; i += RS_LANES)
    rs_store(out + i, rs_mul(rs_mul(rs_load(from + i), scale), rs_load(weight + i)));
  int left = (int)(size - i);
  if (left)
    rs_store_n(out + i,
               rs_mul(rs_mul(rs_load_n(from + i, left), scale), rs_load_n(weight + i, left)), left);
}

static void norm_task(void *context, int64_t task) {
  const struct norm *a = context;
  int64_t first = task * a->tokens_a_task, last = first + a->tokens_a_task;
  if (last > a->tokens) last = a->tokens;
  for (int64_t token = first; token < last; token++) {
    for (int64_t head = 0; head < a->heads; head++) {
      int64_t dense = (token * a->heads + head) * a->size;
      norm_row(a->x + token * a->x_token + head * a->x_head, a->weight + head * a->size,
               a->residual ? a->residual + dense : 0, a->out + dense, a->size, a->eps);
    }
  }
}

void RS_NAME(rms_norm)(const float *x, int64_t x_token, int64_t x_head, const float *weight,
                       float *residual, float *out, int64_t tokens, int64_t heads, int64_t size,
                       float eps) {
  int64_t tokens_a_task = TASK_FLOATS / (heads * size) + 1;
  struct norm a = {x,      weight, residual, out,           x_token, x_head,
                   tokens, heads,  size,     tokens_a_task, eps};
  rs_parallel(norm_task, &a, (tokens + tokens_a_task - 1) / tokens_a_task);
}
