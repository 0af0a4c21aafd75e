/* Weights into panels (panel.h) when a model is loaded, and single rows out of them again.
 *
 * Compiled once, for any processor: it moves values and computes none, but for single rows.
 */
#include "panel.h"
#include "pool.h"
#include "simd.h"

#define EXPORT __attribute__((visibility("default")))

struct pack {
  const uint8_t *weight;
  uint8_t *out;
  int64_t kind, row_bytes, rows, inputs, paired;
};

/* The row that lane `lane` of a panel is, or -1: panels in order, or of two halves in turn. */
static int64_t row_of(const struct pack *a, int64_t panel, int lane) {
  int64_t rows = a->paired ? a->rows / 2 : a->rows;
  int64_t row = (a->paired ? panel / 2 : panel) * RS_PANEL + lane;
  if (row >= rows) return -1;
  return a->paired && panel % 2 ? rows + row : row;
}

/* Where the codes of inputs 2 * pair and 2 * pair + 1 of a block are, in the low and the high bits:
 * words are stored with the lowest byte first. */
static uint8_t *byte_of_pair(uint8_t *words, int lane, int64_t pair) {
  int64_t word = pair / (RS_WORD / 2), byte = pair % (RS_WORD / 2);
  return words + (word * RS_PANEL + lane) * 4 + byte;
}

/* One row of blocks as the file has them: scale(s), then codes. */
static void pack_blocks(int64_t kind, const uint8_t *row, int lane, int64_t inputs, uint8_t *out) {
  const int head = kind == RS_Q4_1 ? 2 : 1; /* fp16 values */
  for (int64_t b = 0; b < inputs / RS_BLOCK; b++, out += rs_panel_bytes(kind, RS_BLOCK)) {
    uint8_t *codes = out + head * RS_HALVES + lane;
    for (int h = 0; h < head; h++, row += 2) memcpy(out + h * RS_HALVES + lane * 2, row, 2);
    if (kind == RS_Q8_0) {
      for (int j = 0; j < RS_BLOCK; j++) codes[j * RS_PANEL] = row[j];
      row += RS_BLOCK;
      continue;
    }
    for (int j = 0; j < RS_BLOCK / 2; j++) { /* the file has input j low and j + 16 high */
      const uint8_t *at = row + (2 * j) % 16;
      int shift = j < 8 ? 0 : 4;
      *byte_of_pair(out + head * RS_HALVES, lane, j) =
          (uint8_t)((at[0] >> shift & 15) | (at[1] >> shift & 15) << 4);
    }
    row += RS_BLOCK / 2;
  }
}

static void pack_panel(void *context, int64_t panel) {
  const struct pack *a = context;
  int64_t bytes = rs_panel_bytes(a->kind, a->inputs);
  uint8_t *out = a->out + panel * bytes;
  memset(out, 0, (size_t)bytes);
  for (int lane = 0; lane < RS_PANEL; lane++) {
    int64_t row = row_of(a, panel, lane);
    if (row < 0) continue;
    const uint8_t *from = a->weight + row * a->row_bytes;
    if (a->kind == RS_F32) {
      for (int64_t k = 0; k < a->inputs; k++)
        memcpy(out + (k * RS_PANEL + lane) * 4, from + k * 4, 4);
    } else if (a->kind == RS_BF16) {
      for (int64_t k = 0; k < a->inputs; k++)
        memcpy(out + (k * RS_PANEL + lane) * 2, from + k * 2, 2);
    } else {
      pack_blocks(a->kind, from, lane, a->inputs, out);
    }
  }
}

/* weight: `rows` rows of values of the kind, or of its blocks, row_bytes apart. paired: the first
 * half of the rows and the second alternate, a panel of each. out: all panels. */
EXPORT void rs_pack(const void *weight, int64_t kind, int64_t row_bytes, int64_t rows,
                    int64_t inputs, int64_t paired, void *out) {
  struct pack a = {weight, out, kind, row_bytes, rows, inputs, paired};
  int64_t each = paired ? rows / 2 : rows;
  rs_parallel(pack_panel, &a, (each + RS_PANEL - 1) / RS_PANEL * (paired ? 2 : 1));
}

static float weight_at(int64_t kind, const uint8_t *panel, int lane, int64_t k) {
  if (kind == RS_F32 || kind == RS_BF16) {
    uint32_t bits = 0;
    float value;
    if (kind == RS_F32) {
      memcpy(&bits, panel + (k * RS_PANEL + lane) * 4, 4);
    } else {
      uint16_t half;
      memcpy(&half, panel + (k * RS_PANEL + lane) * 2, 2);
      bits = (uint32_t)half << 16;
    }
    memcpy(&value, &bits, 4);
    return value;
  }
  const uint8_t *block = panel + rs_panel_bytes(kind, k - k % RS_BLOCK);
  const uint8_t *codes = block + (kind == RS_Q4_1 ? 2 : 1) * RS_HALVES;
  int64_t j = k % RS_BLOCK;
  uint16_t d, m;
  memcpy(&d, block + lane * 2, 2);
  if (kind == RS_Q8_0) return (float)(int8_t)codes[j * RS_PANEL + lane] * rs_from_f16(d);
  int code = *byte_of_pair((uint8_t *)codes, lane, j / 2) >> (j % 2 * 4) & 15;
  if (kind == RS_Q4_0) return (float)(code - 8) * rs_from_f16(d);
  memcpy(&m, block + RS_HALVES + lane * 2, 2);
  return (float)code * rs_from_f16(d) + rs_from_f16(m);
}

struct rows {
  const uint8_t *panels;
  const int64_t *wanted;
  float *out;
  int64_t kind, inputs;
};

static void one_row(void *context, int64_t i) {
  const struct rows *a = context;
  const uint8_t *panel =
      a->panels + a->wanted[i] / RS_PANEL * rs_panel_bytes(a->kind, a->inputs);
  for (int64_t k = 0; k < a->inputs; k++)
    a->out[i * a->inputs + k] = weight_at(a->kind, panel, (int)(a->wanted[i] % RS_PANEL), k);
}

/* Rows `wanted` [count] of weights that were packed in order, into out [count, inputs]. */
EXPORT void rs_packed_rows(const void *panels, int64_t kind, int64_t inputs, const int64_t *wanted,
                           int64_t count, float *out) {
  struct rows a = {panels, wanted, out, kind, inputs};
  rs_parallel(one_row, &a, count);
}

/* Whether all values are bf16: their lower halves are zero. */
EXPORT int rs_are_bf16(const uint32_t *bits, int64_t count) {
  uint32_t seen = 0;
  for (int64_t i = 0; i < count; i++) seen |= bits[i] & 0xffffu;
  return seen == 0;
}
