/* Makes a step's rs_plan: which rows share which chunks, and how the work is cut into tasks. */
#include "attention.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define UNIT_COST 8        /* of reading a chunk, in queries computed on it */
#define TASKS_PER_THREAD 8 /* so that a late thread is waited for shortly */
#define TILES_PER_THREAD 3
#define UNITS_PER_THREAD 4 /* of items, at least, before their heads are taken together */
#define ITEM_BYTES (128 << 10) /* of K and V in a unit at most: it and the next one's are in a cache */
#define LEAST_TASK 64 /* some microseconds: less is not worth waking a thread for */

enum { FITS, BAD_START, BAD_SLOT, NO_ROOM, BAD_PAGE }; /* as in attention.py */

typedef struct {
  int64_t num_rows;
  const int64_t *slot, *start, *kv_len; /* [rows], [rows + 1], [rows] */
  int64_t num_slots, slot_tokens; /* rows of the page table, and what one has room for */
  int64_t num_pages;
  int64_t split_tokens; /* rows of more new tokens become tiles */
  int64_t least_tile, most_tile; /* tokens */
} rs_step;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The pages of a chunk, as far as the row has them: ids[first..end). */
typedef struct {
  const int32_t *ids;
  int64_t count;
} pages;

static pages pages_of(const rs_plan *plan, int64_t slot, int64_t chunk, int64_t kv_len) {
  int64_t size = plan->page_size, stop = least((chunk + 1) * RS_CHUNK, kv_len);
  int64_t first = chunk * RS_CHUNK / size, end = (stop + size - 1) / size;
  return (pages){plan->page_table + slot * plan->table_stride + first, end - first};
}

static int are_valid(pages p, int64_t num_pages) {
  for (int64_t i = 0; i < p.count; i++)
    if (p.ids[i] < 0 || p.ids[i] >= num_pages) return 0;
  return 1;
}

static uint64_t hash_of(pages p, int64_t chunk) {
  uint64_t h = (uint64_t)chunk * 0x9e3779b97f4a7c15u + 1;
  for (int64_t i = 0; i < p.count; i++) {
    h = (h ^ (uint32_t)p.ids[i]) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h;
}

/* The item of a chunk that the row has whole: that of the first row with the same pages. */
static int32_t shared_item(rs_plan *plan, int32_t *table, int64_t mask, rs_item wanted, pages p) {
  int64_t whole = ((int64_t)wanted.chunk + 1) * RS_CHUNK;
  for (int64_t at = (int64_t)(hash_of(p, wanted.chunk) & (uint64_t)mask);; at = (at + 1) & mask) {
    int32_t i = table[at];
    if (i < 0) {
      plan->items[plan->num_items] = wanted;
      return table[at] = (int32_t)plan->num_items++;
    }
    if (plan->items[i].chunk != wanted.chunk) continue;
    pages other = pages_of(plan, plan->items[i].slot, wanted.chunk, whole);
    if (memcmp(other.ids, p.ids, (size_t)p.count * sizeof *p.ids) == 0) return i;
  }
}

/* For every (row, chunk) of the rows to split, in order: its item, into `row_item`. */
static int find_items(rs_plan *plan, const rs_step *step, int32_t *row_item, int32_t *table,
                      int64_t mask) {
  memset(table, -1, (size_t)(mask + 1) * sizeof *table);
  for (int64_t r = 0; r < step->num_rows; r++) {
    int64_t new = step->start[r + 1] - step->start[r], kv_len = step->kv_len[r];
    if (new == 0 || new > step->split_tokens) continue;
    int64_t first = rs_first_seen(kv_len - new, plan->window) / RS_CHUNK;
    for (int64_t c = first; c * RS_CHUNK < kv_len; c++) {
      pages p = pages_of(plan, step->slot[r], c, kv_len);
      if (!are_valid(p, step->num_pages)) return BAD_PAGE;
      rs_item item = {(int32_t)step->slot[r], (int32_t)c, 0, 0};
      if ((c + 1) * RS_CHUNK <= kv_len) {
        *row_item++ = shared_item(plan, table, mask, item, p);
      } else {
        plan->items[plan->num_items] = item;
        *row_item++ = (int32_t)plan->num_items++;
      }
    }
  }
  return FITS;
}

/* Counts each item's members, or once `members` is there and items know their places, fills it. */
static void fill_items(rs_plan *plan, const rs_step *step, const int32_t *row_item,
                       rs_member *members) {
  for (int64_t r = 0; r < step->num_rows; r++) {
    int64_t begin = step->start[r], end = step->start[r + 1], kv_len = step->kv_len[r];
    if (begin == end || end - begin > step->split_tokens) continue;
    int64_t first = rs_first_seen(kv_len - (end - begin), plan->window) / RS_CHUNK;
    for (int64_t c = first; c * RS_CHUNK < kv_len; c++) {
      rs_item *item = plan->items + *row_item++;
      for (int64_t t = begin; t < end; t++) {
        int64_t seen = rs_first_seen(plan->position[t], plan->window) / RS_CHUNK;
        if (c < seen || c > plan->position[t] / RS_CHUNK) continue;
        if (members) {
          int64_t part = plan->part_start[t] + c - seen;
          members[item->first + item->count] = (rs_member){(int32_t)t, (int32_t)part};
        }
        item->count++;
      }
    }
  }
}

static void place_members(rs_plan *plan) {
  int32_t first = 0;
  for (int64_t i = 0; i < plan->num_items; i++) {
    plan->items[i].first = first;
    first += plan->items[i].count;
    plan->items[i].count = 0;
  }
}

static int longer(const void *a, const void *b) {
  return ((const rs_tile *)b)->position - ((const rs_tile *)a)->position;
}

/* Large tiles read K/V seldom, but all threads should have some. */
static int64_t tile_tokens(const rs_plan *plan, const rs_step *step) {
  int64_t tiled = 0;
  for (int64_t r = 0; r < step->num_rows; r++) {
    int64_t new = step->start[r + 1] - step->start[r];
    if (new > step->split_tokens) tiled += new;
  }
  int64_t wanted = tiled * plan->num_kv_heads / (TILES_PER_THREAD * rs_threads());
  if (rs_threads() == 1 || wanted > step->most_tile) return step->most_tile;
  return most(step->least_tile, wanted);
}

/* Tiles of a row of `new` tokens, all about equal, of `size` at most: where they are few, as many as
 * the threads can share evenly. */
static int64_t tiles_of(const rs_plan *plan, const rs_step *step, int64_t new, int64_t size) {
  int64_t threads = rs_threads(), heads = plan->num_kv_heads;
  int64_t fewest = (new + size - 1) / size;
  int64_t end = (new + step->least_tile - 1) / step->least_tile;
  if (fewest * heads >= TASKS_PER_THREAD * threads) return fewest;
  for (int64_t tiles = fewest; tiles <= end; tiles++)
    if (tiles * heads % threads == 0) return tiles;
  return fewest;
}

/* Positions and parts of all tokens, and the tiles. */
static int place_tokens(rs_plan *plan, const rs_step *step) {
  int64_t parts = 0, size = tile_tokens(plan, step);
  for (int64_t r = 0; r < step->num_rows; r++) {
    int64_t begin = step->start[r], end = step->start[r + 1];
    int64_t cached = step->kv_len[r] - (end - begin);
    int split = end - begin <= step->split_tokens;
    for (int64_t t = begin; t < end; t++) {
      int64_t position = cached + t - begin;
      plan->position[t] = (int32_t)position;
      plan->part_start[t] = (int32_t)parts;
      int64_t seen = rs_first_seen(position, plan->window) / RS_CHUNK;
      if (split) parts += position / RS_CHUNK - seen + 1;
    }
    if (split) continue;
    for (int64_t c = rs_first_seen(cached, plan->window) / RS_CHUNK;
         c * RS_CHUNK < step->kv_len[r]; c++)
      if (!are_valid(pages_of(plan, step->slot[r], c, step->kv_len[r]), step->num_pages))
        return BAD_PAGE;
    int64_t new = end - begin, tiles = tiles_of(plan, step, new, size);
    for (int64_t i = 0; i < tiles; i++) {
      int64_t first = begin + new * i / tiles, next = begin + new * (i + 1) / tiles;
      plan->tiles[plan->num_tiles++] = (rs_tile){(int32_t)step->slot[r], (int32_t)first,
                                                 (int32_t)(next - first), plan->position[first]};
    }
  }
  plan->part_start[plan->num_tokens] = (int32_t)parts;
  plan->num_parts = parts;
  qsort(plan->tiles, (size_t)plan->num_tiles, sizeof *plan->tiles, longer);
  return FITS;
}

static int64_t cost_of(const rs_plan *plan, int64_t unit) {
  int64_t group = plan->num_heads / plan->num_kv_heads, i = unit / plan->num_kv_heads;
  if (i >= plan->num_tiles) {
    i = (unit - plan->num_tiles * plan->num_kv_heads) / rs_head_groups(plan);
    return plan->item_heads * (UNIT_COST + plan->items[i].count * group);
  }
  const rs_tile *tile = plan->tiles + i;
  int64_t first = rs_first_seen(tile->position, plan->window) / RS_CHUNK;
  int64_t last = (tile->position + tile->count - 1) / RS_CHUNK;
  return (last - first + 1) * (UNIT_COST + tile->count * group);
}

/* As many heads as fit, if the threads have enough to do then. */
static void choose_item_heads(rs_plan *plan) {
  int64_t head_bytes = 2 * RS_CHUNK * plan->head_size * (int64_t)sizeof(float);
  plan->item_heads = least(most(ITEM_BYTES / head_bytes, 1), plan->num_kv_heads);
  if (plan->num_items * rs_head_groups(plan) < UNITS_PER_THREAD * rs_threads())
    plan->item_heads = 1;
}

/* Runs of units of about the same cost. */
static void cut(rs_plan *plan) {
  choose_item_heads(plan);
  int64_t threads = rs_threads(), total = 0, sum = 0;
  int64_t units =
      plan->num_tiles * plan->num_kv_heads + plan->num_items * rs_head_groups(plan);
  for (int64_t u = 0; u < units; u++) total += cost_of(plan, u);
  int64_t enough = threads == 1 ? total : most(total / (threads * TASKS_PER_THREAD), LEAST_TASK);
  plan->num_tasks = 0;
  plan->task_start[0] = 0;
  for (int64_t u = 0; u < units; u++) {
    sum += cost_of(plan, u);
    if (sum < enough && u + 1 < units) continue;
    plan->task_start[++plan->num_tasks] = (int32_t)(u + 1);
    sum = 0;
  }
}

/* Whether the rows fit, and how many tiles, items and members there are at most. */
EXPORT int rs_bound_plan(const rs_step *step, int64_t *bounds) {
  bounds[0] = bounds[1] = bounds[2] = 0;
  if (step->start[0] != 0) return BAD_START;
  for (int64_t r = 0; r < step->num_rows; r++) {
    int64_t new = step->start[r + 1] - step->start[r], kv_len = step->kv_len[r];
    if (new < 0 || new > kv_len) return BAD_START;
    if (step->slot[r] < 0 || step->slot[r] >= step->num_slots) return BAD_SLOT;
    if (kv_len > step->slot_tokens) return NO_ROOM;
    if (new > step->split_tokens) {
      bounds[0] += (new + step->least_tile - 1) / step->least_tile;
      continue;
    }
    int64_t chunks = (kv_len + RS_CHUNK - 1) / RS_CHUNK;
    bounds[1] += chunks, bounds[2] += chunks * new;
  }
  return FITS;
}

/* Fills a plan whose shape and page table are set. `memory` has room for the tiles, items and
 * members that there are at most, bounds [3]; for an integer a (row, chunk): bounds[1] of them;
 * for a table of mask + 1, a power of two above that; and 2 a token and 1 a unit, and 2 more.
 * Returns FITS, or BAD_PAGE where a page that has to be read is none of num_pages. */
EXPORT int rs_make_plan(rs_plan *plan, const rs_step *step, int32_t *memory, const int64_t *bounds,
                        int64_t mask) {
  int32_t *row_item = memory, *table = row_item + bounds[1], *next = table + mask + 1;
  plan->num_tokens = step->start[step->num_rows];
  plan->num_tiles = plan->num_items = plan->num_parts = plan->num_tasks = 0;
  plan->position = next, next += plan->num_tokens;
  plan->part_start = next, next += plan->num_tokens + 1;
  plan->tiles = (rs_tile *)next, next += 4 * bounds[0];
  plan->items = (rs_item *)next, next += 4 * bounds[1];
  plan->members = (rs_member *)next, next += 2 * bounds[2];
  plan->task_start = next;
  if (place_tokens(plan, step) || find_items(plan, step, row_item, table, mask)) return BAD_PAGE;
  fill_items(plan, step, row_item, NULL);
  place_members(plan);
  fill_items(plan, step, row_item, plan->members);
  cut(plan);
  return FITS;
}
