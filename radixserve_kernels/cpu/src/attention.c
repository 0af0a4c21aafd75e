/* Attention of a step's new tokens over the pages of one layer; see attention.h and its plan. */
#include "attention_desk.h"
#include "ops.h"
#include "pool.h"

#define LOG2E 1.4426950408889634
#define PARALLEL_PARTS 64 /* partial results (of all heads) from which on merging is shared out */

static void load_query(desk *k, int64_t token, int64_t kv_head, int64_t at) {
  const call *c = k->call;
  for (int64_t g = 0; g < c->group; g++) {
    const float *from = c->q + token * c->q_token + (kv_head * c->group + g) * c->q_head;
    float *to = k->q + (at + g) * c->padded;
    for (int64_t d = 0; d < c->size; d++) to[d] = from[d] * c->factor;
  }
}

static int within_chunk(int64_t offset) {
  return (int)(offset < 0 ? 0 : offset > RS_CHUNK ? RS_CHUNK : offset);
}

/* What a token sees of a chunk, for the queries of its group. */
static void see(desk *k, int64_t token, int64_t chunk, int64_t at) {
  const rs_plan *plan = k->call->plan;
  int64_t position = plan->position[token], before = chunk * RS_CHUNK;
  int lo = within_chunk(rs_first_seen(position, plan->window) - before);
  int hi = within_chunk(position + 1 - before);
  for (int64_t g = at; g < at + k->call->group; g++) k->lo[g] = lo, k->hi[g] = hi;
}

/* How many queries from i on, before `end`, see the same of a chunk. */
static int alike(const desk *k, int i, int end) {
  int last = i + 1;
  while (last < end && k->lo[last] == k->lo[i] && k->hi[last] == k->hi[i]) last++;
  return last - i;
}

/* How many queries from i on are computed together. */
static int together(int i, int n) {
  return n - i < RS_MOST_ROWS ? n - i : RS_MOST_ROWS;
}

/* Whether queries, in the order of their positions, are before the chunk or beyond their window. */
static int are_blind(const desk *k, int i, int rows) {
  return k->hi[i + rows - 1] == 0 || k->lo[i] == RS_CHUNK;
}

/* Scores of queries i .. i + rows - 1 on the chunk that was read. */
static void score(desk *k, int i, int rows) {
  const call *c = k->call;
  const float *q = k->q + i * c->padded;
  float *scores = k->weights + i * RS_CHUNK;
  if (k->is_turned) {
    rs_scores(q, c->padded, k->panel, c->size, scores,
              take(k, RS_VECTORS / RS_WIDTH(rows) * c->size), rows);
    return;
  }
  for (int first = 0; first < RS_CHUNK; first += RS_LANES) {
    if (!has_some(k, first)) continue;
    const float *row = rows_in_place(k, first);
    rs_feed feed = take(k, c->size / 4 * RS_FEED_PER_QUAD);
    ask_for_values(k, first);
    switch (rows) {
      case 1: rs_score_rows(q, c->padded, row, c->size, scores + first, feed, 1); break;
      case 2: rs_score_rows(q, c->padded, row, c->size, scores + first, feed, 2); break;
      default: rs_score_rows(q, c->padded, row, c->size, scores + first, feed, RS_FEW_ROWS);
    }
  }
}

/* Weights of n queries on the chunk that was read. All of them before any is used: the panel stays in
 * the first cache that long, and V after it; both do not fit. */
static void weigh(desk *k, int n) {
  const call *c = k->call;
  for (int i = 0, rows; i < n; i += rows) {
    rows = together(i, n);
    if (are_blind(k, i, rows)) continue;
    float *weights = k->weights + i * RS_CHUNK;
    score(k, i, rows);
    if (c->cap != 0.0f)
      for (int j = 0; j < rows * RS_CHUNK; j += RS_LANES)
        rs_store(weights + j, rs_mul(rs_tanh_of_power(rs_load(weights + j)), rs_set1(c->cap)));
    for (int m = i; m < i + rows; m++)
      rs_weigh(k->weights + m * RS_CHUNK, k->lo[m], k->hi[m], k->part_largest + m,
               k->part_sum + m);
  }
}

/* The weighted sums of queries i .. i + rows - 1 on the chunk that was read, each to its place in
 * `out`; of one that sees nothing of it, none. */
static void mix(desk *k, int i, int rows, float *const *out) {
  const call *c = k->call;
  for (int m = 0, same; m < rows; m += same) {
    same = alike(k, i + m, i + rows);
    rs_values(k->weights + (i + m) * RS_CHUNK, k->row, k->lo[i + m], k->hi[i + m],
              out + m, c->padded,
              take(k, c->padded / RS_LANES / RS_WIDTH(same) * RS_CHUNK), same);
  }
}

static void finish(const call *c, int64_t token, int64_t head, const float *sums, float sum) {
  float *out = c->out + (token * c->plan->num_heads + head) * c->size;
  float factor = 1.0f / sum;
  for (int64_t d = 0; d < c->size; d++) out[d] = sums[d] * factor;
}

/* What a tile sees of a chunk. */
static stretch stretch_of_tile(const call *c, rs_tile tile, int64_t kv_head, int64_t chunk) {
  int64_t before = chunk * RS_CHUNK;
  return (stretch){
      .slot = tile.slot, .chunk = chunk, .kv_head = kv_head, .heads = 1,
      .lo = within_chunk(rs_first_seen(tile.position, c->plan->window) - before),
      .hi = within_chunk(tile.position + tile.count - before),
  };
}

/* The weighted sums of queries i .. i + rows - 1 join those of the chunks before. */
static void mix_and_join(desk *k, int i, int rows, int *begun) {
  const int64_t padded = k->call->padded;
  float *out[RS_MOST_ROWS];
  for (int m = 0; m < rows; m++) out[m] = k->part + m * padded;
  mix(k, i, rows, out);
  rs_factors f = rs_merge_factors(k->largest + i, k->part_largest + i, rows);
  for (int m = 0; m < rows; m++) {
    if (k->lo[i + m] >= k->hi[i + m]) continue;
    float *sums = k->sums + (i + m) * padded, *part = k->part + m * padded;
    if (begun[i + m]) {
      rs_merge(sums, k->sum + i + m, part, k->part_sum[i + m], f.own[m], f.its[m], padded);
      k->largest[i + m] = f.largest[m];
      continue;
    }
    begun[i + m] = 1;
    k->largest[i + m] = k->part_largest[i + m], k->sum[i + m] = k->part_sum[i + m];
    memcpy(sums, part, (size_t)padded * sizeof *part);
  }
}

static void do_tile(desk *k, rs_tile tile, int64_t kv_head, stretch after) {
  const call *c = k->call;
  const int n = (int)(tile.count * c->group);
  const int64_t last = (tile.position + tile.count - 1) / RS_CHUNK;
  int begun[RS_MOST_QUERIES] = {0};
  for (int64_t t = 0; t < tile.count; t++)
    load_query(k, tile.first + t, kv_head, t * c->group);
  for (int64_t chunk = rs_first_seen(tile.position, c->plan->window) / RS_CHUNK; chunk <= last;
       chunk++) {
    advance(k, chunk < last ? stretch_of_tile(c, tile, kv_head, chunk + 1) : after);
    for (int64_t t = 0; t < tile.count; t++) see(k, tile.first + t, chunk, t * c->group);
    read_chunk(k, stretch_of_tile(c, tile, kv_head, chunk), kv_head, 1);
    weigh(k, n);
    for (int i = 0, rows; i < n; i += rows) {
      rows = together(i, n);
      if (are_blind(k, i, rows)) continue;
      mix_and_join(k, i, rows, begun);
    }
  }
  for (int i = 0; i < n; i++)
    finish(c, tile.first + i / c->group, kv_head * c->group + i % c->group,
           k->sums + i * c->padded, k->sum[i]);
}

/* What of an item's chunk any of its members sees, under a unit's heads. */
static stretch stretch_of_item(const call *c, rs_item item, int64_t kv_head) {
  const rs_plan *plan = c->plan;
  int64_t heads = plan->num_kv_heads - kv_head;
  stretch s = {.slot = item.slot, .chunk = item.chunk, .kv_head = kv_head, .lo = RS_CHUNK};
  s.heads = heads < plan->item_heads ? heads : plan->item_heads;
  for (int32_t i = item.first; i < item.first + item.count; i++) {
    int64_t position = plan->position[plan->members[i].token];
    int64_t before = (int64_t)item.chunk * RS_CHUNK;
    int first = within_chunk(rs_first_seen(position, plan->window) - before);
    int end = within_chunk(position + 1 - before);
    s.lo = first < s.lo ? first : s.lo, s.hi = end > s.hi ? end : s.hi;
  }
  return s;
}

/* Where the partial result of a query of some members is kept; its statistics are kept here. */
static float *keep(const desk *k, const rs_member *members, int64_t kv_head, int query) {
  const call *c = k->call;
  const int64_t heads = c->plan->num_heads, head = kv_head * c->group + query % c->group;
  const int64_t part = members[query / c->group].part;
  float *stats = c->plan->stats + part * 2 * heads;
  stats[head] = k->part_largest[query], stats[heads + head] = k->part_sum[query];
  return c->plan->parts + (part * heads + head) * c->padded;
}

/* Partial results of all members of an item on its chunk, which was read, for one head. */
static void do_members(desk *k, rs_item item, int64_t kv_head) {
  const call *c = k->call;
  const rs_plan *plan = c->plan;
  const int32_t most = (int32_t)(RS_MOST_QUERIES / c->group);
  for (int32_t begin = 0; begin < item.count; begin += most) {
    const rs_member *member = plan->members + item.first + begin;
    const int32_t count = item.count - begin < most ? item.count - begin : most;
    const int n = (int)(count * c->group);
    for (int32_t t = 0; t < count; t++) {
      load_query(k, member[t].token, kv_head, t * c->group);
      see(k, member[t].token, item.chunk, t * c->group);
    }
    weigh(k, n);
    for (int i = 0, rows; i < n; i += rows) {
      float *out[RS_MOST_ROWS];
      rows = together(i, n);
      for (int m = 0; m < rows; m++) out[m] = keep(k, member, kv_head, i + m);
      mix(k, i, rows, out);
    }
  }
}

static void do_item(desk *k, rs_item item, int64_t kv_head, stretch after) {
  const call *c = k->call;
  const int is_turned = item.count * c->group > RS_FEW_ROWS || !is_in_place(c);
  stretch s = stretch_of_item(c, item, kv_head);
  advance(k, after);
  for (int64_t head = kv_head; head < kv_head + s.heads; head++) {
    read_chunk(k, s, head, is_turned);
    do_members(k, item, head);
  }
}

/* A tile or item, and the first of its unit's heads. */
static int64_t part_of_unit(const rs_plan *plan, int64_t unit, int64_t *kv_head) {
  int64_t tiles = plan->num_tiles * plan->num_kv_heads, groups = rs_head_groups(plan);
  if (unit < tiles) {
    *kv_head = unit % plan->num_kv_heads;
    return unit / plan->num_kv_heads;
  }
  *kv_head = (unit - tiles) % groups * plan->item_heads;
  return plan->num_tiles + (unit - tiles) / groups;
}

/* The first that is read of a unit. */
static stretch first_of(const call *c, int64_t unit) {
  const rs_plan *plan = c->plan;
  int64_t kv_head, i = part_of_unit(plan, unit, &kv_head);
  if (i >= plan->num_tiles) return stretch_of_item(c, plan->items[i - plan->num_tiles], kv_head);
  int64_t seen = rs_first_seen(plan->tiles[i].position, plan->window);
  return stretch_of_tile(c, plan->tiles[i], kv_head, seen / RS_CHUNK);
}

/* What this thread will read of its next task, if the threads take turns. */
static stretch first_of_next(const call *c, int64_t task) {
  int64_t next = task + rs_threads();
  return next < c->plan->num_tasks ? first_of(c, c->plan->task_start[next]) : (stretch){0};
}

static void do_units(void *context, int64_t task) {
  const call *c = context;
  const rs_plan *plan = c->plan;
  int64_t unit = plan->task_start[task], end = plan->task_start[task + 1];
  desk k;
  k.call = c;
  k.ahead.ranges = 0;
  for (; unit < end; unit++) {
    int64_t kv_head, i = part_of_unit(plan, unit, &kv_head);
    stretch after = unit + 1 < end ? first_of(c, unit + 1) : first_of_next(c, task);
    if (i < plan->num_tiles)
      do_tile(&k, plan->tiles[i], kv_head, after);
    else
      do_item(&k, plan->items[i - plan->num_tiles], kv_head, after);
  }
}

/* The result of a token for n heads from `first` on, at most RS_LANES. */
static void merge_parts(const call *c, int64_t token, int64_t first, int n) {
  const rs_plan *plan = c->plan;
  const int64_t heads = plan->num_heads, padded = c->padded;
  const int64_t part = plan->part_start[token], end = plan->part_start[token + 1];
  float sums[RS_LANES * RS_MOST_SIZE], sum[RS_LANES];
  rs_factors f;
  for (int64_t i = part; i < end; i++) {
    const float *largest = plan->stats + i * 2 * heads + first, *weights = largest + heads;
    const float *its = plan->parts + (i * heads + first) * padded;
    if (i == part) {
      memcpy(f.largest, largest, (size_t)n * sizeof *largest);
      memcpy(sum, weights, (size_t)n * sizeof *sum);
      memcpy(sums, its, (size_t)(n * padded) * sizeof *sums);
      continue;
    }
    f = rs_merge_factors(f.largest, largest, n);
    for (int h = 0; h < n; h++)
      rs_merge(sums + h * padded, sum + h, its + h * padded, weights[h], f.own[h], f.its[h], padded);
  }
  for (int h = 0; h < n; h++) finish(c, token, first + h, sums + h * padded, sum[h]);
}

static int64_t merges_of_token(const rs_plan *plan) {
  return (plan->num_heads + RS_LANES - 1) / RS_LANES;
}

static void do_merges(void *context, int64_t task) {
  const call *c = context;
  const rs_plan *plan = c->plan;
  const int64_t each = merges_of_token(plan), all = plan->num_tokens * each;
  for (int64_t i = task * c->merge_step; i < (task + 1) * c->merge_step && i < all; i++) {
    int64_t token = i / each, first = i % each * RS_LANES, left = plan->num_heads - first;
    if (plan->part_start[token] == plan->part_start[token + 1]) continue;
    merge_parts(c, token, first, left < RS_LANES ? (int)left : RS_LANES);
  }
}

/* q: strides of tokens and heads in floats. pages: [num_pages, 2, K/V heads, page size, size] of
 * float, or if is_half of half precision. out: [num_tokens, num_heads, size]. */
void RS_NAME(attention)(const struct rs_plan *plan, const float *q, int64_t q_token, int64_t q_head,
                        const void *pages, int64_t is_half, float *out, float scale,
                        float softcap) {
  call c = {.plan = plan, .q = q, .q_token = q_token, .q_head = q_head, .pages = pages, .out = out};
  c.bytes = is_half ? 2 : 4;
  c.group = plan->num_heads / plan->num_kv_heads;
  c.size = plan->head_size;
  c.padded = RS_PADDED(c.size);
  c.factor = (float)(softcap != 0.0f ? scale / (double)softcap * 2 * LOG2E : scale * LOG2E);
  c.cap = (float)(softcap * LOG2E);
  rs_parallel(do_units, &c, plan->num_tasks);
  if (plan->num_parts == 0) return;
  int64_t merges = plan->num_tokens * merges_of_token(plan);
  int64_t tasks = plan->num_parts < PARALLEL_PARTS ? 1 : 4 * rs_threads();
  c.merge_step = (merges + tasks - 1) / tasks;
  rs_parallel(do_merges, &c, (merges + c.merge_step - 1) / c.merge_step);
}
