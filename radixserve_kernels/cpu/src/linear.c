/* Products of rows with packed weights: which rows and panels go together, what becomes of sums.
 *
 * Few rows read the weights once, in the form they have. Many rows turn a panel or two into float32
 * first, which stay in the caches near the core while all of them use them.
 */
#include "linear_tile.h"
#include "ops.h"
#include "pool.h"

#define INPUTS 800      /* of a part: panels of it as float32 are 50 KiB each, and a task's x 400 */
#define X_FLOATS 6144   /* of few rows' part, so that it stays in the first cache */
#define ROWS 128        /* of a task, at most */
#define FEWER_ROWS 96   /* where that would be too few tasks for the threads */
#define TASK_BYTES 65536 /* of weights, at most, where the rows are few */
#define TASKS 8          /* for each thread, where that makes them smaller */

enum { PLAIN, ADD, SILU_MUL };

struct linear {
  const uint8_t *weight;
  const float *bias, *x; /* bias: one value for each output of each panel, or none */
  float *out;
  int64_t kind, inputs, panels, mode, x_row, rows, out_row, columns;
  int64_t panels_a_task, rows_a_task; /* many rows: a pair of panels or a group */
};

RS_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

RS_INLINE void put(const struct linear *a, float *out, int64_t column, rs_v value) {
  int left = (int)least(a->columns - column, RS_PANEL);
  if (left == RS_PANEL)
    rs_store(out + column, a->mode == ADD ? rs_add(rs_load(out + column), value) : value);
  else if (left > 0)
    rs_store_n(out + column,
               a->mode == ADD ? rs_add(rs_load_n(out + column, left), value) : value, left);
}

RS_INLINE rs_v with_bias(const struct linear *a, const float *sums, int64_t panel) {
  rs_v sum = rs_load(sums);
  return a->bias ? rs_add(sum, rs_load(a->bias + panel * RS_PANEL)) : sum;
}

/* What is done with the sums [rows, GROUP * 16] of panels from `panel` on, up to a group. */
static void finish(const struct linear *a, const float *sums, int64_t row, int64_t rows,
                   int64_t panel, int64_t end) {
  int panels = (int)least(GROUP, end - panel);
  for (int64_t r = 0; r < rows; r++, sums += GROUP * RS_PANEL) {
    float *out = a->out + (row + r) * a->out_row;
    if (a->mode == SILU_MUL) { /* the panels of gate and up alternate */
      for (int p = 0; p < panels; p += 2) {
        rs_v gate = with_bias(a, sums + p * RS_PANEL, panel + p);
        rs_v up = with_bias(a, sums + (p + 1) * RS_PANEL, panel + p + 1);
        rs_v one = rs_set1(1.0f);
        rs_v silu = rs_div(gate, rs_add(one, rs_exp(rs_sub(rs_zero(), gate))));
        put(a, out, (panel + p) / 2 * RS_PANEL, rs_mul(silu, up));
      }
    } else {
      for (int p = 0; p < panels; p++)
        put(a, out, (panel + p) * RS_PANEL, with_bias(a, sums + p * RS_PANEL, panel + p));
    }
  }
}

/* The panels of a group, from input k on; the last one again where there are fewer. */
RS_INLINE void locate(const struct linear *a, int64_t panel, int64_t k, const uint8_t **weight) {
  int64_t bytes = rs_panel_bytes(a->kind, a->inputs), before = rs_panel_bytes(a->kind, k);
  for (int p = 0; p < GROUP; p++)
    weight[p] = a->weight + least(panel + p, a->panels - 1) * bytes + before;
}

/* Inputs of a part, of which there are as few and as equal ones as `most` allows. */
RS_INLINE int64_t part_of(const struct linear *a, int64_t most) {
  int64_t parts = (a->inputs + most - 1) / most;
  return ((a->inputs + parts - 1) / parts + RS_BLOCK - 1) / RS_BLOCK * RS_BLOCK;
}

/* All rows, a tile of them, times some panels of a group. after: which this thread reads then. */
static void multiply(const struct linear *a, int64_t panel, int64_t panels, int64_t after,
                     float *sums) {
  const int64_t step = PANELS(a->kind, a->rows), bytes = rs_panel_bytes(a->kind, a->inputs);
  const int64_t part = part_of(a, X_FLOATS / a->rows);
  const uint8_t *weight[GROUP];
  for (int64_t k = 0; k < a->inputs; k += part) {
    locate(a, panel, k, weight);
    for (int64_t p = 0; p < panels; p += step) { /* those beyond `panels` may be worked on too */
      int64_t next = p + step < panels ? step : after - panel - p;
      tiles[a->kind][a->rows](a->x + k, a->x_row, weight + p, least(part, a->inputs - k),
                              sums + p * RS_PANEL, k > 0, next * bytes);
    }
  }
}

static void few_rows(void *context, int64_t task) {
  const struct linear *a = context;
  float sums[FEW_ROWS * GROUP * RS_PANEL];
  int64_t panel = task * a->panels_a_task;
  int64_t end = least(panel + a->panels_a_task, a->panels);
  int64_t next_task = (task + rs_threads()) * a->panels_a_task; /* if the threads take turns */
  for (; panel < end; panel += GROUP) {
    int64_t next = panel + GROUP < end ? panel + GROUP : least(next_task, a->panels - 1);
    multiply(a, panel, least(GROUP, end - panel), next, sums);
    finish(a, sums, 0, a->rows, panel, end);
  }
}

/* `inputs` inputs of a panel, of any kind but RS_F32, as float32 [inputs][16]. */
RS_INLINE void unpack_as(const int kind, const uint8_t *weight, int64_t inputs, float *out) {
  if (kind == RS_BF16) {
    for (int64_t k = 0; k < inputs; k++)
      rs_store(out + k * RS_PANEL, rs_load_bf16((const uint16_t *)weight + k * RS_PANEL));
    return;
  }
  for (int64_t b = 0; b < inputs / RS_BLOCK; b++) {
    scales s = load_scales(kind, weight);
    weight += HEAD(kind);
    for (int w = 0; w < RS_BLOCK / RS_WORD; w++, weight += WORD_BYTES(kind))
      RS_UNROLL for (int i = 0; i < RS_WORD; i++, out += RS_PANEL)
        rs_store(out, weight_of(kind, &s, weight, rs_load_words(weight), i));
  }
}

static void unpack(int64_t kind, const uint8_t *weight, int64_t inputs, float *out) {
  switch (kind) {
    case RS_BF16: unpack_as(RS_BF16, weight, inputs, out); break;
    case RS_Q8_0: unpack_as(RS_Q8_0, weight, inputs, out); break;
    case RS_Q4_0: unpack_as(RS_Q4_0, weight, inputs, out); break;
    default: unpack_as(RS_Q4_1, weight, inputs, out);
  }
}

static void many_rows(void *context, int64_t task) {
  const struct linear *a = context;
  _Alignas(64) float sums[ROWS * GROUP * RS_PANEL], whole[WHOLE * INPUTS * RS_PANEL];
  int64_t groups = (a->panels + a->panels_a_task - 1) / a->panels_a_task;
  int64_t row = task / groups * a->rows_a_task, rows = least(a->rows_a_task, a->rows - row);
  int64_t panel = task % groups * a->panels_a_task;
  int64_t tiles_of_rows = (rows + MOST_ROWS - 1) / MOST_ROWS;
  int64_t part = part_of(a, INPUTS);
  for (int64_t k = 0; k < a->inputs; k += part) {
    int64_t inputs = least(part, a->inputs - k);
    const uint8_t *weight[GROUP];
    locate(a, panel, k, weight);
    for (int p = 0; p < a->panels_a_task; p += WHOLE) {
      for (int i = 0; i < WHOLE && a->kind != RS_F32; i++) {
        float *panel_whole = whole + i * inputs * RS_PANEL;
        unpack(a->kind, weight[p + i], inputs, panel_whole);
        weight[p + i] = (const uint8_t *)panel_whole;
      }
      for (int64_t t = 0; t < tiles_of_rows; t++) { /* as equal as can be */
        int64_t first = rows * t / tiles_of_rows, next = rows * (t + 1) / tiles_of_rows;
        whole_tiles[next - first](a->x + (row + first) * a->x_row + k, a->x_row, weight + p, inputs,
                                  sums + (first * GROUP + p) * RS_PANEL, k > 0, 0);
      }
    }
  }
  finish(a, sums, row, rows, panel, least(panel + a->panels_a_task, a->panels));
}

/* Panels of a task of few rows: pairs of gate and up stay together, and so do those of a tile. */
RS_INLINE int64_t some_panels(int64_t kind, int64_t inputs, int64_t panels, int64_t rows) {
  int64_t unit = PANELS(kind, rows) > 2 ? PANELS(kind, rows) : 2;
  int64_t some = panels / (TASKS * rs_threads());
  some = least(some, TASK_BYTES / (rs_panel_bytes(kind, inputs) + 1));
  return some < unit ? unit : some / unit * unit;
}

void RS_NAME(linear)(const void *weight, int64_t kind, int64_t inputs, int64_t panels,
                     const float *bias, int64_t mode, const float *x, int64_t x_row, int64_t rows,
                     float *out, int64_t out_row, int64_t columns) {
  if (rows == 0) return;
  int64_t groups = (panels + GROUP - 1) / GROUP;
  int64_t most = rs_threads() > 1 && rows * groups < 4 * rs_threads() * ROWS ? FEWER_ROWS : ROWS;
  int64_t tasks_of_rows = (rows + most - 1) / most; /* as equal as can be */
  int is_few = rs_threads() > 1 && tasks_of_rows * groups < TASKS * rs_threads();
  struct linear a = {
      .weight = weight, .kind = kind, .inputs = inputs, .panels = panels, .bias = bias,
      .mode = mode, .x = x, .x_row = x_row, .rows = rows, .out = out, .out_row = out_row,
      .columns = columns, .panels_a_task = is_few ? 2 : GROUP,
      .rows_a_task = (rows + tasks_of_rows - 1) / tasks_of_rows,
  };
  if (rows <= (kind == RS_F32 ? MOST_ROWS : FEW_ROWS)) {
    a.panels_a_task = some_panels(kind, inputs, panels, rows);
    rs_parallel(few_rows, &a, (panels + a.panels_a_task - 1) / a.panels_a_task);
  } else {
    groups = (panels + a.panels_a_task - 1) / a.panels_a_task;
    rs_parallel(many_rows, &a, tasks_of_rows * groups);
  }
}
