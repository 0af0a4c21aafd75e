/* The product's innermost part: some rows times some panels, the sums in registers.
 *
 * Each sum is one chain of fused additions over the inputs in their order, so its bits depend on
 * neither the numbers of rows and panels nor on where the inputs are cut into calls.
 */
#ifndef RS_LINEAR_TILE_H
#define RS_LINEAR_TILE_H

#include "panel.h"
#include "simd.h"

/* The most rows of a tile, and panels by rows: what the registers hold. At most GROUP panels. */
#if defined(RS_BODY_AVX512)
#define MOST_ROWS 12
#define PANELS(kind, rows) ((rows) <= ((kind) <= RS_BF16 ? 4 : 2) ? 4 : 2)
#define FOR_ROWS(X, kind) \
  X(kind, 1) X(kind, 2) X(kind, 3) X(kind, 4) X(kind, 5) X(kind, 6) X(kind, 7) X(kind, 8) \
  X(kind, 9) X(kind, 10) X(kind, 11) X(kind, 12)
#elif defined(RS_BODY_AVX2) || defined(__aarch64__)
#define MOST_ROWS 6
#define PANELS(kind, rows) \
  ((kind) <= RS_BF16 ? ((rows) <= 1 ? 4 : (rows) <= 3 ? 2 : 1) : (rows) <= 1 ? 2 : 1)
#define FOR_ROWS(X, kind) X(kind, 1) X(kind, 2) X(kind, 3) X(kind, 4) X(kind, 5) X(kind, 6)
#else
#define MOST_ROWS 3
#define PANELS(kind, rows) ((rows) <= 1 ? 2 : 1)
#define FOR_ROWS(X, kind) X(kind, 1) X(kind, 2) X(kind, 3)
#endif
#define GROUP 4 /* panels that are worked on together */
#define MOST_SUMS 24
#define AHEAD 1024 /* bytes of a panel; blocks are better off without: they wait for arithmetic */

/* Weights of inputs 2j and 2j + 1 of a block, whose codes are at `codes`. */
RS_INLINE void pair_of_weights(const int kind, const uint8_t *codes, rs_v d, rs_v m, rs_v *even,
                               rs_v *odd) {
  if (kind == RS_Q8_0) {
    *even = rs_mul(rs_to_float(rs_load_i8((const int8_t *)codes)), d);
    *odd = rs_mul(rs_to_float(rs_load_i8((const int8_t *)codes + RS_PANEL)), d);
  } else if (kind == RS_Q4_0) {
    rs_i bytes = rs_load_i8((const int8_t *)codes);
    *even = rs_mul(d, rs_low4(1, bytes));
    *odd = rs_mul(d, rs_high4(1, bytes));
  } else { /* d * code is exact in float32, so fused or not it is rounded once */
    rs_i bytes = rs_load_u8(codes);
    *even = rs_fma(d, rs_low4(0, bytes), m);
    *odd = rs_fma(d, rs_high4(0, bytes), m);
  }
}

RS_INLINE void add_products(const int rows, const int panels, const float *x, int64_t x_row,
                            const rs_v *w, rs_v *sums) {
  RS_UNROLL for (int r = 0; r < rows; r++) {
    rs_v value = rs_set1(x[r * x_row]);
    RS_UNROLL for (int p = 0; p < panels; p++)
      sums[r * panels + p] = rs_fma(value, w[p], sums[r * panels + p]);
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

RS_INLINE void add_blocks(const int kind, const int rows, const int panels, const float *x,
                          int64_t x_row, const uint8_t *const *weight, int64_t inputs,
                          rs_v *sums) {
  const int head = kind == RS_Q4_1 ? 2 * RS_HALVES : RS_HALVES;
  const int pair_bytes = kind == RS_Q8_0 ? 2 * RS_PANEL : RS_PANEL;
  const int64_t bytes = rs_panel_bytes(kind, RS_BLOCK);
  for (int64_t b = 0; b < inputs / RS_BLOCK; b++, x += RS_BLOCK) {
    const uint8_t *codes[GROUP];
    rs_v d[GROUP], m[GROUP];
    RS_UNROLL for (int p = 0; p < panels; p++) {
      const uint8_t *block = weight[p] + b * bytes;
      d[p] = rs_load_f16((const uint16_t *)block);
      m[p] = kind == RS_Q4_1 ? rs_load_f16((const uint16_t *)(block + RS_HALVES)) : d[p];
      codes[p] = block + head;
    }
    for (int j = 0; j < RS_BLOCK / 2; j++) {
      rs_v even[GROUP], odd[GROUP];
      RS_UNROLL for (int p = 0; p < panels; p++)
        pair_of_weights(kind, codes[p] + j * pair_bytes, d[p], m[p], even + p, odd + p);
      add_products(rows, panels, x + 2 * j, x_row, even, sums);
      add_products(rows, panels, x + 2 * j + 1, x_row, odd, sums);
    }
  }
}

/* x [rows, inputs], rows x_row apart, times `panels` panels; into sums [rows, panels * 16], rows
 * of a group apart, or added to what is there. */
RS_INLINE void tile(const int kind, const int rows, const int panels, const float *x,
                    int64_t x_row, const uint8_t *const *weight, int64_t inputs, float *sums,
                    int add) {
  const int sums_row = GROUP * RS_PANEL;
  rs_v sum[MOST_SUMS];
  RS_UNROLL for (int r = 0; r < rows; r++)
    RS_UNROLL for (int p = 0; p < panels; p++)
      sum[r * panels + p] = add ? rs_load(sums + r * sums_row + p * RS_PANEL) : rs_zero();
  if (kind == RS_F32 || kind == RS_BF16)
    add_plain(kind, rows, panels, x, x_row, weight, inputs, sum);
  else
    add_blocks(kind, rows, panels, x, x_row, weight, inputs, sum);
  RS_UNROLL for (int r = 0; r < rows; r++)
    RS_UNROLL for (int p = 0; p < panels; p++)
      rs_store(sums + r * sums_row + p * RS_PANEL, sum[r * panels + p]);
}

typedef void tile_function(const float *x, int64_t x_row, const uint8_t *const *weight,
                           int64_t inputs, float *sums, int add);

#define TILE(kind, rows)                                                                       \
  static void tile_##kind##_##rows(const float *x, int64_t x_row, const uint8_t *const *weight, \
                                   int64_t inputs, float *sums, int add) {                     \
    tile(kind, rows, PANELS(kind, rows), x, x_row, weight, inputs, sums, add);                 \
  }
#define TILE_ENTRY(kind, rows) [rows] = tile_##kind##_##rows,
#define TILES(kind) [kind] = {FOR_ROWS(TILE_ENTRY, kind)},

FOR_ROWS(TILE, RS_F32)
FOR_ROWS(TILE, RS_BF16)
FOR_ROWS(TILE, RS_Q8_0)
FOR_ROWS(TILE, RS_Q4_0)
FOR_ROWS(TILE, RS_Q4_1)

static tile_function *const tiles[][MOST_ROWS + 1] = {
    TILES(RS_F32) TILES(RS_BF16) TILES(RS_Q8_0) TILES(RS_Q4_0) TILES(RS_Q4_1)};

#endif
