/* All layers of a decoder in one call: the operators in the order in which Python would call them,
 * without its time between them. No arithmetic of its own, so the bits are theirs.
 */
#include <string.h>

#include "ops.h"

#define EXPORT __attribute__((visibility("default")))
#define DECLARED(name, parameters, arguments) void rs_##name parameters;
RS_OPS(DECLARED)

/* The structures are layers.py's, field by field. */
struct rs_product {
  const void *weight;
  const float *bias;
  int64_t kind, inputs, panels, columns, mode;
};

struct rs_layer {
  struct rs_product qkv, output, gate_up, down;
  const float *qk_norm; /* may be NULL */
  const float *mlp_norm, *next_norm;
};

struct rs_sight { /* what a layer's attention reads */
  const struct rs_plan *plan;
  void *pages;
  float scale, softcap;
};

struct rs_pass {
  int64_t num_layers, hidden, num_heads, num_kv_heads, head_size, page_size;
  int64_t tokens, num_wanted, num_places, is_half, is_wide; /* places: of tokens in the pages */
  const struct rs_layer *layers;
  const struct rs_sight *sights;
  const float *turn;     /* [tokens, head_size / 2] pairs, or NULL */
  const void *slots;     /* [tokens] */
  const int64_t *wanted; /* [num_wanted], tokens whose result the head gets */
  float *x;              /* [tokens, hidden], the residual stream */
  float *normed;         /* [tokens, hidden], normalised for the first layer */
  float *qkv, *qk, *mixed, *inner, *y; /* room for [tokens, outputs] of each */
  float *last_x, *last_mixed, *out;    /* [num_wanted, ...] */
  float eps;
};

static void multiply(const struct rs_product *p, const float *x, int64_t rows, float *out) {
  rs_linear(p->weight, p->kind, p->inputs, p->panels, p->bias, p->mode, x, p->inputs, rows, out,
            p->columns, p->columns);
}

static void attend(const struct rs_pass *a, const struct rs_layer *layer,
                   const struct rs_sight *sight) {
  int64_t size = a->head_size, rotated = a->num_heads + a->num_kv_heads;
  int64_t all = (rotated + a->num_kv_heads) * size, token = all;
  float *q = a->qkv;
  multiply(&layer->qkv, a->normed, a->tokens, a->qkv);
  if (layer->qk_norm) {
    rs_rms_norm(a->qkv, all, size, layer->qk_norm, NULL, a->qk, a->tokens, rotated, size, a->eps);
    q = a->qk, token = rotated * size;
  }
  rs_rope_kv_write(q, token, size, q + a->num_heads * size, token, size, a->qkv + rotated * size,
                   all, size, a->turn, a->slots, a->is_wide, sight->pages, a->is_half,
                   a->page_size, a->tokens, a->num_heads, a->num_kv_heads, size);
  rs_attention(sight->plan, q, token, size, sight->pages, a->is_half, a->mixed, sight->scale,
               sight->softcap);
}

static void gather(const float *rows, const int64_t *wanted, int64_t count, int64_t size,
                   float *out) {
  for (int64_t i = 0; i < count; i++)
    memcpy(out + i * size, rows + wanted[i] * size, (size_t)size * sizeof *out);
}

enum { FITS, BAD_SLOT, BAD_WANTED }; /* as in layers.py */

static int check(const struct rs_pass *a) {
  for (int64_t t = 0; t < a->tokens; t++)
    if ((a->is_wide ? ((const int64_t *)a->slots)[t] : ((const int32_t *)a->slots)[t]) >=
        a->num_places)
      return BAD_SLOT;
  for (int64_t i = 0; i < a->num_wanted; i++)
    if (a->wanted[i] < 0 || a->wanted[i] >= a->tokens) return BAD_WANTED;
  return FITS;
}

EXPORT int rs_layers(const struct rs_pass *a) {
  int wrong = check(a);
  if (wrong) return wrong;
  int64_t rows = a->tokens;
  float *x = a->x, *mixed = a->mixed, *normed = a->normed;
  for (int64_t i = 0; i < a->num_layers; i++) {
    const struct rs_layer *layer = a->layers + i;
    attend(a, layer, a->sights + i);
    if (i == a->num_layers - 1) { /* from here on a token's result serves nobody else */
      rows = a->num_wanted;
      if (!rows) break;
      gather(x, a->wanted, rows, a->hidden, a->last_x);
      gather(mixed, a->wanted, rows, layer->output.inputs, a->last_mixed);
      x = a->last_x, mixed = a->last_mixed, normed = a->out;
    }
    multiply(&layer->output, mixed, rows, a->y);
    rs_rms_norm(a->y, a->hidden, 0, layer->mlp_norm, x, normed, rows, 1, a->hidden, a->eps);
    multiply(&layer->gate_up, normed, rows, a->inner);
    multiply(&layer->down, a->inner, rows, a->y);
    rs_rms_norm(a->y, a->hidden, 0, layer->next_norm, x, normed, rows, 1, a->hidden, a->eps);
  }
  return FITS;
}
