/* The operators that Python calls: compiled once for every body, and called through a table.
 *
 * RS_OPS(X) lists X(name, parameters, arguments). A source defines `void RS_NAME(name) parameters`;
 * dispatch.c exports `rs_name` with the same parameters. library.py declares them once more.
 */
#ifndef RS_OPS_H
#define RS_OPS_H

#include <stdint.h>

struct rs_plan; /* attention.h */

#define RS_JOINED_(a, b, c) a##b##_##c
#define RS_JOINED(a, b, c) RS_JOINED_(a, b, c)
#define RS_NAME(name) RS_JOINED(rs_, name, RS_BODY)

/* clang-format off */
#define RS_OPS(X)                                                                            \
  X(rms_norm,                                                                                \
    (const float *x, int64_t x_token, int64_t x_head, const float *weight, float *residual,  \
     float *out, int64_t tokens, int64_t heads, int64_t size, float eps),                    \
    (x, x_token, x_head, weight, residual, out, tokens, heads, size, eps))                   \
  X(attention,                                                                               \
    (const struct rs_plan *plan, const float *q, int64_t q_token, int64_t q_head,            \
     const void *pages, int64_t is_half, float *out, float scale, float softcap),            \
    (plan, q, q_token, q_head, pages, is_half, out, scale, softcap))                         \
  X(rope_kv_write,                                                                           \
    (float *q, int64_t q_token, int64_t q_head, float *k, int64_t k_token, int64_t k_head,   \
     const float *v, int64_t v_token, int64_t v_head, const float *turn,                     \
     const void *slots, int64_t is_wide, void *pages, int64_t is_half, int64_t page_size,    \
     int64_t tokens, int64_t num_heads, int64_t num_kv_heads, int64_t size),                 \
    (q, q_token, q_head, k, k_token, k_head, v, v_token, v_head, turn, slots, is_wide,       \
     pages, is_half, page_size, tokens, num_heads, num_kv_heads, size))                      \
  X(linear,                                                                                  \
    (const void *weight, int64_t kind, int64_t inputs, int64_t panels, const float *bias,    \
     int64_t mode, const float *x, int64_t x_row, int64_t rows, float *out, int64_t out_row, \
     int64_t columns),                                                                       \
    (weight, kind, inputs, panels, bias, mode, x, x_row, rows, out, out_row, columns))
/* clang-format on */

#endif
