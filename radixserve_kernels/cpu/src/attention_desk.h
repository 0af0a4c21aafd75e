/* What a thread works with in attention.c, and how it reads K and V: what is ahead is asked for while
 * what is here is computed with.
 */
#ifndef RS_ATTENTION_DESK_H
#define RS_ATTENTION_DESK_H

#include "attention_tile.h"

/* One call. Numbers of K and V are float, or half precision: 4 or 2 bytes. */
typedef struct {
  const rs_plan *plan;
  const float *q;
  int64_t q_token, q_head;
  const char *pages;
  int64_t bytes, group, size, padded;
  float *out;
  float factor, cap; /* scores are base 2: factor on q, and if cap is not 0, cap * tanh of it */
  int64_t merge_step; /* merges (of a token, for up to RS_LANES heads) to a task */
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
  int first, end, is_turned; /* is_turned: K is in the panel */
  fetch ahead;    /* what is brought into the caches meanwhile */
  int is_brought; /* what is here was ahead before */
  const float *row[RS_CHUNK];
  int lo[RS_MOST_QUERIES], hi[RS_MOST_QUERIES];
  float largest[RS_MOST_QUERIES], sum[RS_MOST_QUERIES]; /* of all chunks so far */
  float part_largest[RS_MOST_QUERIES], part_sum[RS_MOST_QUERIES];
  float panel[RS_MOST_SIZE * RS_CHUNK], copies[RS_CHUNK * RS_MOST_SIZE];
  float q[RS_MOST_QUERIES * RS_MOST_SIZE], sums[RS_MOST_QUERIES * RS_MOST_SIZE];
  float weights[RS_MOST_QUERIES * RS_CHUNK], part[RS_MOST_ROWS * RS_MOST_SIZE];
} desk;

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

/* Whether V can be used where it lies. */
static int is_float(const call *c) { return c->bytes == 4 && c->size == c->padded; }

/* Whether K can, 16 positions of a page at a time. */
static int is_in_place(const call *c) {
  return is_float(c) && c->plan->page_size % RS_LANES == 0;
}

/* Of the 16 positions from `first` on, K of the first one, where all of them or some are in place. */
static const float *rows_in_place(const desk *k, int first) {
  const int begin = first < k->first ? k->first : first;
  return (const float *)k->at[begin] - (begin - first) * k->call->size;
}

static int has_some(const desk *k, int first) {
  return first < k->end && first + RS_LANES > k->first;
}

/* V of 16 positions from `first` on is asked for, if it was not before. */
static void ask_for_values(const desk *k, int first) {
  const call *c = k->call;
  const int begin = first < k->first ? k->first : first;
  const int end = first + RS_LANES < k->end ? first + RS_LANES : k->end;
  const int64_t vector = c->size * c->bytes;
  if (k->is_brought) return;
  for (int j = begin; j < end; j++)
    for (int64_t b = 0; b < vector; b += RS_LINE) RS_PREFETCH(k->at[j] + to_value(c) + b);
}

/* Finds K of a stretch under one head, and if it is to be turned brings it into the panel, and points
 * to its V. Lanes of the panel beside its positions hold anything. */
static void read_chunk(desk *k, stretch s, int64_t kv_head, int is_turned) {
  const call *c = k->call;
  find_places(k, s, kv_head);
  k->is_turned = is_turned;
  if (!is_in_place(c)) copy_rows(k, 0, k->first, k->end);
  for (int first = 0; first < RS_CHUNK && is_turned; first += RS_LANES) {
    if (!has_some(k, first)) continue;
    const float *row = is_in_place(c) ? rows_in_place(k, first) : k->copies + first * c->padded;
    ask_for_values(k, first);
    rs_turn(row, c->padded, c->padded, k->panel + first, take(k, c->padded));
  }
  if (!is_float(c)) {
    copy_rows(k, to_value(c), k->first, k->end);
    return;
  }
  for (int j = k->first; j < k->end; j++) k->row[j] = (const float *)(k->at[j] + to_value(c));
}

#endif
