/* Attention of a step's new tokens over the pages of one layer; see attention.h and its plan. */
#include "attention_tile.h"
#include "ops.h"
#include "pool.h"

#define LOG2E 1.4426950408889634
#define PARALLEL_PARTS 64 /* partial results (of all heads) from which on merging is shared out */

/* One call. Numbers of K and V are float, or half precision: 4 or 2 bytes. */
typedef struct {
  const rs_plan *plan;
  const float *q;
  int64_t q_token, q_head;
  const char *pages;
  int64_t bytes, group, size, padded;
  float *out;
  float factor, cap; /* scores are base 2: factor on q, and if cap is not 0, cap * tanh of it */
  int64_t merge_step; /* (token, K/V head) pairs to a task of merging */
} call;

/* Positions [lo, hi) of a chunk of K and V under some heads, which are read together; hi = 0: none. */
typedef struct {
  int64_t slot, chunk, kv_head, heads;
  int lo, hi;
} stretch;

/* A stretch's pages, as far as they are its heads', in the order in which they lie in memory. */
typedef struct {
  const char *at[2 * RS_CHUNK]; /* of K and V of each page, `bytes` from there on */
  int64_t ranges, bytes;        /* of `at`, and of each */
  int64_t range, byte;          /* what was taken to be fetched ends there */
} fetch;

/* What a thread works with: queries, the range [lo, hi) of a chunk that each sees, and results. */
typedef struct {
  const call *call;
  const char *at[RS_CHUNK]; /* K of the positions [first, end) of the chunk and head that are read */
  int first, end;
  fetch ahead;    /* what is brought into the caches meanwhile */
  int is_brought; /* what is here was ahead before */
  const float *row[RS_CHUNK];
  int lo[RS_MOST_QUERIES], hi[RS_MOST_QUERIES];
  float largest[RS_MOST_QUERIES], sum[RS_MOST_QUERIES];
  float panel[RS_MOST_SIZE * RS_CHUNK], copies[RS_CHUNK * RS_MOST_SIZE];
  float q[RS_MOST_QUERIES * RS_MOST_SIZE], sums[RS_MOST_QUERIES * RS_MOST_SIZE];
  float weights[RS_MOST_ROWS * RS_CHUNK], part[RS_MOST_ROWS * RS_MOST_SIZE];
} desk;

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

/* The page of a position of the row in `slot`, from a K/V head on. */
static const char *page_of(const call *c, int64_t slot, int64_t position, int64_t kv_head) {
  const rs_plan *plan = c->plan;
  int64_t id = plan->page_table[slot * plan->table_stride + position / plan->page_size];
  return c->pages + (id * 2 * plan->num_kv_heads + kv_head) * plan->page_size * c->size * c->bytes;
}

static void find_places(desk *k, stretch s, int64_t kv_head) {
  const call *c = k->call;
  const int64_t vector = c->size * c->bytes, page_size = c->plan->page_size;
  k->first = s.lo, k->end = s.hi;
  for (int j = s.lo; j < s.hi;) {
    int64_t position = s.chunk * RS_CHUNK + j, offset = position % page_size;
    const char *page = page_of(c, s.slot, position, kv_head);
    for (; offset < page_size && j < s.hi; offset++) k->at[j++] = page + offset * vector;
  }
}

/* From K to V, in bytes: the same position of the same page and head. */
static int64_t to_value(const call *c) {
  return c->plan->num_kv_heads * c->plan->page_size * c->size * c->bytes;
}

/* At most so many of the lines that are ahead, which are then taken to be fetched. */
static rs_feed take(desk *k, int64_t lines) {
  fetch *f = &k->ahead;
  if (f->range == f->ranges) return (rs_feed){NULL, 0};
  rs_feed feed = {f->at[f->range] + f->byte, (f->bytes - f->byte + RS_LINE - 1) / RS_LINE};
  if (feed.lines > lines) feed.lines = lines;
  f->byte += feed.lines * RS_LINE;
  if (f->byte >= f->bytes) f->byte = 0, f->range++;
  return feed;
}

/* From now on `next` is ahead. */
static void advance(desk *k, stretch next) {
  const call *c = k->call;
  const int64_t page_size = c->plan->page_size;
  fetch *f = &k->ahead;
  k->is_brought = f->ranges != 0;
  f->range = f->byte = f->ranges = 0;
  f->bytes = next.heads * page_size * c->size * c->bytes;
  if (next.heads == c->plan->num_kv_heads) f->bytes *= 2; /* K and V in one */
  const int64_t before = next.chunk * RS_CHUNK, end = before + next.hi;
  for (int64_t at = before + next.lo; at < end; at += page_size - at % page_size) {
    const char *page = page_of(c, next.slot, at, next.kv_head);
    f->at[f->ranges++] = page;
    if (next.heads < c->plan->num_kv_heads) f->at[f->ranges++] = page + to_value(c);
  }
}

/* row[j] = the numbers `beyond` the places of [lo, hi), as padded floats, all in k->copies. */
static void copy_rows(desk *k, int64_t beyond, int lo, int hi) {
  const call *c = k->call;
  const int64_t whole = c->size / RS_LANES * RS_LANES, rest = c->size - whole;
  for (int j = lo; j < hi; j++) {
    const char *from = k->at[j] + beyond;
    float *to = k->copies + j * c->padded;
    k->row[j] = to;
    if (c->bytes == 4) {
      const float *numbers = (const float *)from;
      for (int64_t d = 0; d < whole; d += RS_LANES) rs_store(to + d, rs_load(numbers + d));
      if (rest) rs_store(to + whole, rs_load_n(numbers + whole, (int)rest));
      continue;
    }
    const uint16_t *half = (const uint16_t *)from;
    for (int64_t d = 0; d < whole; d += RS_LANES) rs_store(to + d, rs_load_f16(half + d));
    if (rest) {
      uint16_t last[RS_LANES] = {0};
      memcpy(last, half + whole, (size_t)rest * sizeof *last);
      rs_store(to + whole, rs_load_f16(last));
    }
  }
}

/* Brings K of a stretch under one head into the panel, and points to its V. Lanes of the panel beside
 * its positions hold anything. */
static void read_chunk(desk *k, stretch s, int64_t kv_head) {
  const call *c = k->call;
  find_places(k, s, kv_head);
  const int64_t vector = c->size * c->bytes, beyond = to_value(c);
  const int is_float = c->bytes == 4 && c->size == c->padded;
  const int in_place = is_float && c->plan->page_size % RS_LANES == 0; /* 16 are in one page */
  const int lo = k->first, hi = k->end;
  const char **at = k->at;
  if (!in_place) copy_rows(k, 0, lo, hi);
  for (int part = 0; part < RS_CHUNK / RS_LANES; part++) {
    const int first = part * RS_LANES, begin = first < lo ? lo : first;
    const int end = first + RS_LANES < hi ? first + RS_LANES : hi;
    if (begin >= end) continue;
    const float *row = k->copies + first * c->padded;
    if (in_place) row = (const float *)at[begin] - (begin - first) * c->size;
    for (int j = begin; j < end && !k->is_brought; j++)
      for (int64_t b = 0; b < vector; b += RS_LINE) RS_PREFETCH(at[j] + beyond + b);
    rs_turn(row, c->padded, c->padded, k->panel + first, take(k, c->padded));
  }
  if (!is_float) {
    copy_rows(k, beyond, lo, hi);
    return;
  }
  for (int j = lo; j < hi; j++) k->row[j] = (const float *)(at[j] + beyond);
}

/* How many queries from i on, before `end`, see the same of a chunk. */
static int alike(const desk *k, int i, int end) {
  int last = i + 1;
  while (last < end && k->lo[last] == k->lo[i] && k->hi[last] == k->hi[i]) last++;
  return last - i;
}

/* The partial results of queries i .. i + rows - 1 on the chunk that was read, into `part`; of one
 * that sees nothing of it, none. */
static void compute(desk *k, int i, int rows, float *largest, float *sum) {
  const call *c = k->call;
  rs_scores(k->q + i * c->padded, c->padded, k->panel, c->size, k->weights,
            take(k, RS_VECTORS / RS_WIDTH(rows) * c->size), rows);
  if (c->cap != 0.0f)
    for (int j = 0; j < rows * RS_CHUNK; j += RS_LANES)
      rs_store(k->weights + j,
               rs_mul(rs_tanh_of_power(rs_load(k->weights + j)), rs_set1(c->cap)));
  for (int m = 0; m < rows; m++)
    rs_weigh(k->weights + m * RS_CHUNK, k->lo[i + m], k->hi[i + m], largest + m, sum + m);
  for (int m = 0, same; m < rows; m += same) {
    same = alike(k, i + m, i + rows);
    rs_values(k->weights + m * RS_CHUNK, k->row, k->lo[i + m], k->hi[i + m],
              k->part + m * c->padded, c->padded,
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
    read_chunk(k, stretch_of_tile(c, tile, kv_head, chunk), kv_head);
    for (int i = 0; i < n; i += RS_MOST_ROWS) {
      const int rows = n - i < RS_MOST_ROWS ? n - i : RS_MOST_ROWS;
      float largest[RS_MOST_ROWS], sum[RS_MOST_ROWS];
      if (k->hi[i + rows - 1] == 0 || k->lo[i] == RS_CHUNK) continue; /* after or before them all */
      compute(k, i, rows, largest, sum);
      for (int m = 0; m < rows; m++) {
        if (k->lo[i + m] >= k->hi[i + m]) continue;
        float *sums = k->sums + (i + m) * c->padded, *part = k->part + m * c->padded;
        if (begun[i + m]) {
          rs_merge(sums, k->largest + i + m, k->sum + i + m, part, largest[m], sum[m], c->padded);
          continue;
        }
        begun[i + m] = 1;
        k->largest[i + m] = largest[m], k->sum[i + m] = sum[m];
        memcpy(sums, part, (size_t)c->padded * sizeof *part);
      }
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
    for (int i = 0; i < n; i += RS_MOST_ROWS) {
      const int rows = n - i < RS_MOST_ROWS ? n - i : RS_MOST_ROWS;
      float largest[RS_MOST_ROWS], sum[RS_MOST_ROWS];
      compute(k, i, rows, largest, sum);
      for (int m = 0; m < rows; m++) {
        int64_t head = kv_head * c->group + (i + m) % c->group;
        int64_t part = member[(i + m) / c->group].part * plan->num_heads + head;
        plan->stats[2 * part] = largest[m], plan->stats[2 * part + 1] = sum[m];
        memcpy(plan->parts + part * c->padded, k->part + m * c->padded,
               (size_t)c->padded * sizeof *k->part);
      }
    }
  }
}

static void do_item(desk *k, rs_item item, int64_t kv_head, stretch after) {
  stretch s = stretch_of_item(k->call, item, kv_head);
  advance(k, after);
  for (int64_t head = kv_head; head < kv_head + s.heads; head++) {
    read_chunk(k, s, head);
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

static void do_units(void *context, int64_t task) {
  const call *c = context;
  const rs_plan *plan = c->plan;
  int64_t unit = plan->task_start[task], end = plan->task_start[task + 1];
  desk k;
  k.call = c;
  k.ahead.ranges = 0;
  for (; unit < end; unit++) {
    int64_t kv_head, i = part_of_unit(plan, unit, &kv_head);
    stretch after = unit + 1 < end ? first_of(c, unit + 1) : (stretch){0};
    if (i < plan->num_tiles)
      do_tile(&k, plan->tiles[i], kv_head, after);
    else
      do_item(&k, plan->items[i - plan->num_tiles], kv_head, after);
  }
}

static void merge_parts(const call *c, int64_t token, int64_t head) {
  const rs_plan *plan = c->plan;
  int64_t at = plan->part_start[token] * plan->num_heads + head;
  int64_t end = plan->part_start[token + 1] * plan->num_heads;
  float sums[RS_MOST_SIZE], largest = plan->stats[2 * at], sum = plan->stats[2 * at + 1];
  memcpy(sums, plan->parts + at * c->padded, (size_t)c->padded * sizeof *sums);
  for (at += plan->num_heads; at < end; at += plan->num_heads)
    rs_merge(sums, &largest, &sum, plan->parts + at * c->padded, plan->stats[2 * at],
             plan->stats[2 * at + 1], c->padded);
  finish(c, token, head, sums, sum);
}

static void do_merges(void *context, int64_t task) {
  const call *c = context;
  const rs_plan *plan = c->plan;
  int64_t end = (task + 1) * c->merge_step, all = plan->num_tokens * plan->num_kv_heads;
  for (int64_t pair = task * c->merge_step; pair < end && pair < all; pair++) {
    int64_t token = pair / plan->num_kv_heads, first = pair % plan->num_kv_heads * c->group;
    if (plan->part_start[token] == plan->part_start[token + 1]) continue;
    for (int64_t head = first; head < first + c->group; head++) merge_parts(c, token, head);
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
  int64_t pairs = plan->num_tokens * plan->num_kv_heads;
  int64_t tasks = plan->num_parts < PARALLEL_PARTS ? 1 : 4 * rs_threads();
  c.merge_step = (pairs + tasks - 1) / tasks;
  rs_parallel(do_merges, &c, (pairs + c.merge_step - 1) / c.merge_step);
}
