/* The product's innermost part: some rows times some panels, the sums in registers.
 *
 * Each sum is one chain of fused additions over the inputs in their order, so its bits depend on
 * neither the numbers of rows and panels nor on where the inputs are cut into calls.
 */
#ifndef RS_LINEAR_TILE_H
#define RS_LINEAR_TILE_H

#include "panel.h"
#include "simd.h"

/* What the registers hold: the most rows of a tile of float32 weights (MOST) and of shorter ones as
 * they are packed (FEW), and panels by rows, at most GROUP. IN_HALVES: one half of a panel's outputs
 * after the other. IS_ROLLED: two inputs of a word after the other. Which is best was measured. */
#if defined(RS_BODY_AVX512)
#define MOST_ROWS 12
#define FEW_ROWS 12
#define PANELS(kind, rows) ((rows) <= ((kind) <= RS_BF16 ? 4 : 2) ? 4 : 2)
#define FOR_MOST(X, kind) \
  X(kind, 1) X(kind, 2) X(kind, 3) X(kind, 4) X(kind, 5) X(kind, 6) X(kind, 7) X(kind, 8) \
  X(kind, 9) X(kind, 10) X(kind, 11) X(kind, 12)
#define FOR_FEW FOR_MOST
#elif defined(RS_BODY_AVX2) || defined(__aarch64__)
#define MOST_ROWS 6
#define PANELS(kind, rows) \
  ((kind) <= RS_BF16 ? ((rows) <= 1 ? 4 : (rows) <= 3 ? 2 : 1) : (rows) <= 1 ? 2 : 1)
#define FOR_MOST(X, kind) X(kind, 1) X(kind, 2) X(kind, 3) X(kind, 4) X(kind, 5) X(kind, 6)
#if defined(RS_BODY_AVX2)
#define FEW_ROWS 8
#define FOR_FEW(X, kind) FOR_MOST(X, kind) X(kind, 7) X(kind, 8)
#define IN_HALVES(kind, rows) ((rows) > MOST_ROWS || ((rows) == 5 && (kind) > RS_BF16))
#define IS_ROLLED(rows) ((rows) == 4 || (rows) == 6)
#endif
#else
#define MOST_ROWS 3
#define PANELS(kind, rows) ((rows) <= 1 ? 2 : 1)
#define FOR_MOST(X, kind) X(kind, 1) X(kind, 2) X(kind, 3)
#endif
#ifndef FEW_ROWS
#define FEW_ROWS MOST_ROWS
#define FOR_FEW FOR_MOST
#endif
#ifndef IN_HALVES
#define IN_HALVES(kind, rows) 0
#define IS_ROLLED(rows) 1
#endif
#define GROUP 4 /* panels that are worked on together */
#if defined(RS_BODY_AVX512)
#define WHOLE 2 /* panels of a tile of many rows, whose weights are float32 by then */
#else
#define WHOLE 1
#endif
#define MOST_SUMS 24
#define HEAD(kind) ((kind) == RS_Q4_1 ? 2 * RS_HALVES : RS_HALVES) /* bytes before the codes */
#define WORD_BYTES(kind) (RS_WORD * RS_PANEL / ((kind) == RS_Q8_0 ? 1 : 2))
#define AHEAD 1024 /* bytes of a panel */
#define FEWEST_ROWS 2 /* that wait for the weights rather than for the arithmetic */

/* What the weights of an output in a block have in common: weight = d * code + m. The product is
 * exact, so it is rounded once. A code of four bits is used where it lies in the word's half, as
 * code * 16^i, for which there is d[i] = d / 16^i: exact too. */
typedef struct {
  rs_v d[4], m;
} scales;

RS_INLINE scales load_scales(const int kind, const uint8_t *block) {
  scales s;
  s.d[0] = rs_load_f16((const uint16_t *)block);
  s.d[1] = rs_mul(s.d[0], rs_set1(0x1p-4f));
  s.d[2] = rs_mul(s.d[0], rs_set1(0x1p-8f));
  s.d[3] = rs_mul(s.d[0], rs_set1(0x1p-12f));
  s.m = kind == RS_Q4_1 ? rs_load_f16((const uint16_t *)(block + RS_HALVES))
                        : rs_mul(s.d[0], rs_set1(-8.0f)); /* exact, and so is d * (code - 8) */
  return s;
}

/* The weights of input i = 0 .. 7 of those whose codes are in `words`, or of 8 bits at `codes`. */
RS_INLINE rs_v weight_of(const int kind, const scales *s, const uint8_t *codes, rs_i words,
                         const int i) {
  if (kind == RS_Q8_0)
    return rs_mul(rs_to_float(rs_load_i8((const int8_t *)codes + i * RS_PANEL)), s->d[0]);
  if (i >= 4) words = rs_shr(words, 16);
  rs_i code = rs_iand(words, rs_iset1(15 << i % 4 * 4));
  return rs_fma(rs_to_float(code), s->d[i % 4], s->m);
}

RS_INLINE void add_products(const int rows, const int panels, const float *x, int64_t x_row,
                            const rs_v *w, rs_v *sums) {
  RS_UNROLL for (int r = 0; r < rows; r++) {
    rs_v value = rs_set1(x[r * x_row]);
    RS_UNROLL for (int p = 0; p < panels; p++)
      sums[p * rows + r] = rs_fma(value, w[p], sums[p * rows + r]);
  }
}

RS_INLINE void add_plain(const int kind, const int rows, const int panels, const float *x,
                         int64_t x_row, const uint8_t *const *weight, int64_t inputs, rs_v *sums) {
  const int64_t input_bytes = rs_panel_bytes(kind, 1);
  const int is_far = kind == RS_BF16 || rows <= 4; /* many rows bring float32 near before */
  const uint8_t *from[GROUP];
  RS_UNROLL for (int p = 0; p < panels; p++) from[p] = weight[p];
  for (int64_t k = 0; k < inputs; k++) {
    rs_v w[GROUP];
    if (is_far) {
      RS_UNROLL for (int p = 0; p < panels; p++)
        __builtin_prefetch(from[p] + k * input_bytes + AHEAD);
    }
    RS_UNROLL for (int p = 0; p < panels; p++)
      w[p] = kind == RS_F32 ? rs_load((const float *)from[p] + k * RS_PANEL)
                            : rs_load_bf16((const uint16_t *)from[p] + k * RS_PANEL);
    add_products(rows, panels, x + k, x_row, w, sums);
  }
}

/* Two inputs of one panel, whose codes are the lowest in `words`. */
RS_INLINE void add_pair(const int kind, const int rows, const float *x, int64_t x_row,
                        const scales *s, const uint8_t *codes, rs_i words, rs_v *sums) {
  rs_v even = weight_of(kind, s, codes, words, 0), odd = weight_of(kind, s, codes, words, 1);
  add_products(rows, 1, x, x_row, &even, sums);
  add_products(rows, 1, x + 1, x_row, &odd, sums);
}

/* Eight inputs of one panel. */
RS_INLINE void add_word(const int kind, const int rows, const float *x, int64_t x_row,
                        const scales *s, const uint8_t *codes, rs_v *sums) {
  rs_i words = rs_load_words(codes);
  if (rows <= 2) {
    RS_UNROLL for (int i = 0; i < RS_WORD; i++) {
      rs_v one = weight_of(kind, s, codes, words, i);
      add_products(rows, 1, x + i, x_row, &one, sums);
    }
  } else if (IS_ROLLED(rows)) {
    RS_ROLLED for (int i = 0; i < RS_WORD; i += 2, words = rs_shr(words, 8))
      add_pair(kind, rows, x + i, x_row, s, codes + i * RS_PANEL, words, sums);
  } else {
    RS_UNROLL for (int i = 0; i < RS_WORD; i += 2, words = rs_shr(words, 8))
      add_pair(kind, rows, x + i, x_row, s, codes + i * RS_PANEL, words, sums);
  }
}

RS_INLINE void fetch(const uint8_t *from, const int bytes) {
  RS_UNROLL for (int at = 0; at < bytes; at += RS_LINE) RS_PREFETCH(from + at);
}

/* Eight inputs of one panel, then of the next: there are enough chains of sums under way, since the
 * processor looks ahead, and fewer registers are needed than for all panels at once. */
RS_INLINE void add_blocks(const int kind, const int rows, const int panels, const float *x,
                          int64_t x_row, const uint8_t *const *weight, int64_t inputs,
                          rs_v *sums, int64_t next, const int is_fed) {
  const int64_t bytes = rs_panel_bytes(kind, RS_BLOCK);
  for (int64_t b = 0; b < inputs / RS_BLOCK; b++) {
    scales s[GROUP];
    RS_UNROLL for (int p = 0; p < panels; p++) {
      s[p] = load_scales(kind, weight[p] + b * bytes);
      if (is_fed) fetch(weight[p] + b * bytes + next, HEAD(kind));
    }
    for (int w = 0; w < RS_BLOCK / RS_WORD; w++, x += RS_WORD) {
      RS_UNROLL for (int p = 0; p < panels; p++) {
        const uint8_t *codes = weight[p] + b * bytes + HEAD(kind) + w * WORD_BYTES(kind);
        if (is_fed) fetch(codes + next, WORD_BYTES(kind));
        add_word(kind, rows, x, x_row, s + p, codes, sums + p * rows);
      }
    }
  }
}

enum { LOW = 0, HIGH = RS_PANEL / 2, BOTH };

/* One half of the outputs or both: for one, the compiler leaves out what the other needs. */
RS_INLINE void tile_of(const int kind, const int rows, const int panels, const float *x,
                       int64_t x_row, const uint8_t *const *weight, int64_t inputs, float *sums,
                       int add, int64_t next, const int half) {
  const int sums_row = GROUP * RS_PANEL;
  rs_v sum[MOST_SUMS];
  RS_UNROLL for (int r = 0; r < rows; r++)
    RS_UNROLL for (int p = 0; p < panels; p++)
      sum[p * rows + r] = add ? rs_load(sums + r * sums_row + p * RS_PANEL) : rs_zero();
  if (kind == RS_F32 || kind == RS_BF16)
    add_plain(kind, rows, panels, x, x_row, weight, inputs, sum);
  else
    add_blocks(kind, rows, panels, x, x_row, weight, inputs, sum, next,
               rows <= FEWEST_ROWS || half == HIGH);
  RS_UNROLL for (int r = 0; r < rows; r++)
    RS_UNROLL for (int p = 0; p < panels; p++) {
      float *out = sums + r * sums_row + p * RS_PANEL;
      if (half == BOTH)
        rs_store(out, sum[p * rows + r]);
      else
        rs_store_half(out, sum[p * rows + r], half);
    }
}

/* x [rows, inputs], rows x_row apart, times `panels` panels; into sums [rows, panels * 16], rows
 * of a group apart, or added to what is there. next: bytes from a panel to the one that this thread
 * reads afterwards, which is fetched meanwhile. */
RS_INLINE void tile(const int kind, const int rows, const int panels, const float *x,
                    int64_t x_row, const uint8_t *const *weight, int64_t inputs, float *sums,
                    int add, int64_t next) {
  if (!IN_HALVES(kind, rows)) {
    tile_of(kind, rows, panels, x, x_row, weight, inputs, sums, add, next, BOTH);
    return;
  }
  tile_of(kind, rows, panels, x, x_row, weight, inputs, sums, add, next, LOW);
  tile_of(kind, rows, panels, x, x_row, weight, inputs, sums, add, next, HIGH);
}

typedef void tile_function(const float *x, int64_t x_row, const uint8_t *const *weight,
                           int64_t inputs, float *sums, int add, int64_t next);

#define TILE(kind, rows)                                                                       \
  static void tile_##kind##_##rows(const float *x, int64_t x_row, const uint8_t *const *weight, \
                                   int64_t inputs, float *sums, int add, int64_t next) {       \
    tile(kind, rows, PANELS(kind, rows), x, x_row, weight, inputs, sums, add, next);           \
  }
#define TILE_ENTRY(kind, rows) [rows] = tile_##kind##_##rows,
#define TILES(FOR, kind) [kind] = {FOR(TILE_ENTRY, kind)},

#define WHOLE_TILE(kind, rows)                                                             \
  static void whole_tile_##rows(const float *x, int64_t x_row, const uint8_t *const *weight, \
                                int64_t inputs, float *sums, int add, int64_t next) {      \
    tile_of(kind, rows, WHOLE, x, x_row, weight, inputs, sums, add, next, BOTH);           \
  }
#define WHOLE_ENTRY(kind, rows) [rows] = whole_tile_##rows,

FOR_MOST(WHOLE_TILE, RS_F32)
FOR_MOST(TILE, RS_F32)
FOR_FEW(TILE, RS_BF16)
FOR_FEW(TILE, RS_Q8_0)
FOR_FEW(TILE, RS_Q4_0)
FOR_FEW(TILE, RS_Q4_1)

static tile_function *const tiles[][FEW_ROWS + 1] = {
    TILES(FOR_MOST, RS_F32) TILES(FOR_FEW, RS_BF16) TILES(FOR_FEW, RS_Q8_0)
    TILES(FOR_FEW, RS_Q4_0) TILES(FOR_FEW, RS_Q4_1)};

static tile_function *const whole_tiles[MOST_ROWS + 1] = {FOR_MOST(WHOLE_ENTRY, RS_F32)};

#endif
