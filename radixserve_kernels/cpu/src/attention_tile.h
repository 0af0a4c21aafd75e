/* The inner loops of attention.c: scores, weights and weighted sums of some queries on one chunk.
 *
 * A score is one chain of fused additions over the head's numbers, from the first to the last;
 * lanes are positions, so K is turned on its side first. A weighted sum is one such chain over
 * positions; lanes are the head's numbers. How many queries are computed at once changes neither.
 */
#ifndef RS_ATTENTION_TILE_H
#define RS_ATTENTION_TILE_H

#include "attention.h"
#include "simd.h"

#include <math.h>

#define RS_MOST_ROWS 6 /* queries in registers */
#define RS_FEW_ROWS 3  /* that use K once and as it is turned, not from a panel */
#define RS_VECTORS (RS_CHUNK / RS_LANES)

/* Vectors in registers for so many queries, of 16 lanes each: 32 registers, or half as wide 16. */
#if defined(RS_BODY_AVX512)
#define RS_WIDTH(queries) 4
#else
#define RS_WIDTH(queries) ((queries) == 1 ? 4 : (queries) <= 3 ? 2 : 1)
#endif

/* 2^x = e + e * g with e = 2^n; x in [-127.5, 127], where e is 0 at n = -127. */
RS_INLINE rs_v rs_power_parts(rs_v x, rs_v *e) {
  rs_v n = rs_round(x), f = rs_sub(x, n);
  rs_v g = rs_fma(rs_set1(0x1.416b52p-13f), f, rs_set1(0x1.5f082ep-10f));
  g = rs_fma(g, f, rs_set1(0x1.3b2de0p-7f));
  g = rs_fma(g, f, rs_set1(0x1.c6af7cp-5f));
  g = rs_fma(g, f, rs_set1(0x1.ebfbdcp-3f));
  g = rs_fma(g, f, rs_set1(0x1.62e430p-1f));
  *e = rs_exp2i(rs_to_int(n));
  return rs_mul(g, f);
}

/* 2^x for x <= 0, to about one unit in the last place; 1 at 0, and 0 below -127; NaN stays NaN. */
RS_INLINE rs_v rs_power(rs_v x) {
  rs_v e, g = rs_power_parts(rs_max(rs_set1(-127.0f), x), &e);
  return rs_fma(e, g, e);
}

/* tanh(x / (2 * log2(e))), without loss near 0. */
RS_INLINE rs_v rs_tanh_of_power(rs_v x) {
  x = rs_min(rs_set1(28.0f), rs_max(rs_set1(-28.0f), x));
  rs_v e, g = rs_power_parts(x, &e);
  rs_v z = rs_fma(e, g, rs_sub(e, rs_set1(1.0f)));
  return rs_div(z, rs_add(z, rs_set1(2.0f)));
}

/* Lines to fetch during a piece of arithmetic, one a step: in bursts they would hold up its own loads,
 * since a core asks for some 20 lines at a time. Loops without any are compiled by themselves. */
typedef struct {
  const char *at;
  int64_t lines;
} rs_feed;

RS_INLINE void rs_fetch(rs_feed feed, int64_t line) {
  if (line < feed.lines) RS_PREFETCH(feed.at + line * RS_LINE);
}

/* Scores of `rows` queries q[m * padded + d] with the panel [size][RS_CHUNK]. */
RS_INLINE void rs_score_tile(const float *q, int64_t padded, const float *panel, int64_t size,
                             float *scores, rs_feed feed, const int is_fed, const int rows,
                             const int width) {
  for (int v0 = 0; v0 < RS_VECTORS; v0 += width, feed.at += size * RS_LINE, feed.lines -= size) {
    rs_v sum[RS_MOST_ROWS][RS_VECTORS];
    RS_UNROLL for (int m = 0; m < rows; m++)
      RS_UNROLL for (int v = 0; v < width; v++) sum[m][v] = rs_zero();
    const float *at = panel + v0 * RS_LANES;
    for (int64_t d = 0; d < size; d++, at += RS_CHUNK) {
      rs_v key[RS_VECTORS];
      if (is_fed) rs_fetch(feed, d);
      RS_UNROLL for (int v = 0; v < width; v++) key[v] = rs_load(at + v * RS_LANES);
      RS_UNROLL for (int m = 0; m < rows; m++) {
        rs_v x = rs_set1(q[m * padded + d]);
        RS_UNROLL for (int v = 0; v < width; v++) sum[m][v] = rs_fma(x, key[v], sum[m][v]);
      }
    }
    RS_UNROLL for (int m = 0; m < rows; m++)
      RS_UNROLL for (int v = 0; v < width; v++)
        rs_store(scores + m * RS_CHUNK + (v0 + v) * RS_LANES, sum[m][v]);
  }
}

/* 16 positions, whose rows are `stride` apart: the numbers d .. d + 3 of all of them. */
RS_INLINE void rs_turn_quad(const float *row, int64_t stride, rs_v x[4]) {
  RS_UNROLL for (int i = 0; i < 4; i++) x[i] = rs_load_quads(row + i * stride, 4 * stride);
  rs_transpose_quads(x);
}

#define RS_FEED_PER_QUAD 6 /* lines: with those of rs_values a chunk's K and V under a head */

/* Scores of `rows` queries, few, with 16 positions; size is a multiple of 4. */
RS_INLINE void rs_score_rows(const float *q, int64_t padded, const float *row, int64_t size,
                             float *scores, rs_feed feed, const int rows) {
  rs_v sum[RS_FEW_ROWS];
  RS_UNROLL for (int m = 0; m < rows; m++) sum[m] = rs_zero();
  for (int64_t d = 0; d < size; d += 4, q += 4) {
    rs_v key[4];
    RS_UNROLL for (int i = 0; i < RS_FEED_PER_QUAD; i++)
      rs_fetch(feed, d / 4 * RS_FEED_PER_QUAD + i);
    rs_turn_quad(row + d, size, key);
    RS_UNROLL for (int i = 0; i < 4; i++)
      RS_UNROLL for (int m = 0; m < rows; m++)
        sum[m] = rs_fma(rs_set1(q[m * padded + i]), key[i], sum[m]);
  }
  RS_UNROLL for (int m = 0; m < rows; m++) rs_store(scores + m * RS_CHUNK, sum[m]);
}

/* out[m][d] = sum of weights[m][j] * row[j][d] over j in [lo, hi), of `width` vectors. */
RS_INLINE void rs_value_tile(const float *weights, const float *const *row, int64_t d, int lo,
                             int hi, float *const *out, rs_feed feed, const int is_fed,
                             const int rows, const int width) {
  rs_v sum[RS_MOST_ROWS][RS_VECTORS];
  RS_UNROLL for (int m = 0; m < rows; m++)
    RS_UNROLL for (int v = 0; v < width; v++) sum[m][v] = rs_zero();
  for (int j = lo; j < hi; j++) {
    rs_v value[RS_VECTORS];
    if (is_fed) rs_fetch(feed, j - lo);
    RS_UNROLL for (int v = 0; v < width; v++) value[v] = rs_load(row[j] + d + v * RS_LANES);
    RS_UNROLL for (int m = 0; m < rows; m++) {
      rs_v x = rs_set1(weights[m * RS_CHUNK + j]);
      RS_UNROLL for (int v = 0; v < width; v++) sum[m][v] = rs_fma(x, value[v], sum[m][v]);
    }
  }
  RS_UNROLL for (int m = 0; m < rows; m++)
    RS_UNROLL for (int v = 0; v < width; v++)
      rs_store(out[m] + d + v * RS_LANES, sum[m][v]);
}

static void rs_scores(const float *q, int64_t padded, const float *panel, int64_t size,
                      float *scores, rs_feed feed, int rows) {
#define CASE(ROWS)                                                                          \
  case ROWS:                                                                                \
    if (feed.lines > 0)                                                                     \
      rs_score_tile(q, padded, panel, size, scores, feed, 1, ROWS, RS_WIDTH(ROWS));         \
    else                                                                                    \
      rs_score_tile(q, padded, panel, size, scores, feed, 0, ROWS, RS_WIDTH(ROWS));         \
    return;
  switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

static void rs_values(const float *weights, const float *const *row, int lo, int hi,
                      float *const *out, int64_t padded, rs_feed feed, int rows) {
  for (int64_t d = 0, width; d < padded; d += width * RS_LANES) {
    width = (padded - d) / RS_LANES;
    if (width > RS_WIDTH(rows)) width = RS_WIDTH(rows);
#define CASE(ROWS, WIDTH)                                                                   \
  case ROWS * 8 + WIDTH:                                                                    \
    if (WIDTH > RS_WIDTH(ROWS)) break;                                                      \
    if (feed.lines > 0)                                                                     \
      rs_value_tile(weights, row, d, lo, hi, out, feed, 1, ROWS, WIDTH);                    \
    else                                                                                    \
      rs_value_tile(weights, row, d, lo, hi, out, feed, 0, ROWS, WIDTH);                    \
    break;
#define CASES(ROWS) CASE(ROWS, 1) CASE(ROWS, 2) CASE(ROWS, 3) CASE(ROWS, 4)
    switch (rows * 8 + width) { CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6) }
    feed.at += (hi - lo) * RS_LINE, feed.lines -= hi - lo;
#undef CASES
#undef CASE
  }
}

/* Scores to weights 2^(score - largest), in place; what lies outside [lo, hi) gets weight 0. */
RS_INLINE void rs_weigh(float *scores, int lo, int hi, float *largest, float *sum) {
  for (int j = 0; j < lo; j++) scores[j] = -INFINITY;
  for (int j = hi; j < RS_CHUNK; j++) scores[j] = -INFINITY;
  rs_v most = rs_load(scores), total = rs_zero();
  RS_UNROLL for (int v = 1; v < RS_VECTORS; v++)
    most = rs_max(most, rs_load(scores + v * RS_LANES));
  most = rs_max_all(most);
  *largest = rs_lane0(most);
  RS_UNROLL for (int v = 0; v < RS_VECTORS; v++) {
    rs_v weight = rs_power(rs_sub(rs_load(scores + v * RS_LANES), most));
    rs_store(scores + v * RS_LANES, weight);
    total = v ? rs_add(total, weight) : weight;
  }
  *sum = rs_lane0(rs_sum_all(total));
}

/* What results of earlier chunks and of the next one count for when they are merged. */
typedef struct {
  float largest[RS_LANES], own[RS_LANES], its[RS_LANES];
} rs_factors;

/* Those of the first n queries, at most RS_LANES. */
RS_INLINE rs_factors rs_merge_factors(const float *largest, const float *part_largest, int n) {
  rs_factors f;
  rs_v before = rs_load_n(largest, n), its = rs_load_n(part_largest, n);
  rs_v most = rs_max(before, its);
  rs_store(f.largest, most);
  rs_store(f.own, rs_power(rs_sub(before, most)));
  rs_store(f.its, rs_power(rs_sub(its, most)));
  return f;
}

/* A result of earlier chunks takes in that of the next one. */
RS_INLINE void rs_merge(float *sums, float *sum, const float *part, float part_sum, float own,
                        float its, int64_t padded) {
  rs_v a = rs_set1(own), b = rs_set1(its);
  *sum = rs_lane0(rs_fma(rs_set1(*sum), a, rs_mul(rs_set1(part_sum), b)));
  for (int64_t d = 0; d < padded; d += RS_LANES)
    rs_store(sums + d, rs_fma(rs_load(sums + d), a, rs_mul(rs_load(part + d), b)));
}

/* 16 positions, whose rows are `stride` apart, to 16 lanes of the panel's first `size` rows. */
RS_INLINE void rs_turn(const float *row, int64_t stride, int64_t size, float *panel, rs_feed feed) {
  for (int64_t d = 0; d < size; d += 4, row += 4) {
    rs_v x[4];
    RS_UNROLL for (int i = 0; i < 4; i++) rs_fetch(feed, d + i);
    rs_turn_quad(row, stride, x);
    RS_UNROLL for (int i = 0; i < 4; i++) rs_store(panel + (d + i) * RS_CHUNK, x[i]);
  }
}

#endif
