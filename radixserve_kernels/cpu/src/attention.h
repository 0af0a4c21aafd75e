/* What a step's attention has to do; attention_plan.c makes it, attention.c does it in every layer.
 *
 * A chunk is RS_CHUNK positions of a row, at a multiple of RS_CHUNK. A (token, head) has a partial
 * result for each chunk that it sees, and they are merged in the chunks' order: its bits depend on
 * its query and on the K/V that it sees, and neither on the units below nor on who computes them.
 *
 * A tile is some new tokens of one row; it goes through the row's chunks and merges as it goes.
 * An item is one chunk, read once for all tokens that share it, its members; their partial results
 * are kept and merged when all items are done. A unit is a tile for one K/V head, or an item for as
 * many as lie side by side in a page and fit into the second cache: memory gives a whole page of K
 * and V nearly twice as fast as pieces of it for one head each.
 */
#ifndef RS_ATTENTION_H
#define RS_ATTENTION_H

#include <stdint.h>

#define RS_CHUNK 64
#define RS_MOST_QUERIES 96 /* computed at once: most query heads a K/V head, or of a tile */
#define RS_MOST_SIZE 256   /* of a head */
#define RS_PADDED(size) (((size) + 15) / 16 * 16)

typedef struct {
  int32_t slot, first, count, position; /* row of the page table, tokens, position of the first */
} rs_tile;

typedef struct {
  int32_t slot, chunk, first, count; /* members from `first` on; `slot` is the row of one of them */
} rs_item;

typedef struct {
  int32_t token, part; /* part: which of the partial results is this chunk's */
} rs_member;

typedef struct rs_plan {
  int64_t page_size, num_heads, num_kv_heads, head_size;
  int64_t window; /* 0: none */
  int64_t item_heads; /* K/V heads of an item's unit, the last one's may be fewer */
  const int32_t *page_table;
  int64_t table_stride;
  int64_t num_tokens, num_tiles, num_items, num_parts, num_tasks;
  int32_t *position;   /* [num_tokens] */
  int32_t *part_start; /* [num_tokens + 1]; a tile's token has no parts */
  rs_tile *tiles;      /* the longest first */
  rs_item *items;
  rs_member *members;
  int32_t *task_start; /* [num_tasks + 1], in units: tiles x K/V heads, then items x groups of them */
  float *parts;        /* [num_parts, num_heads, RS_PADDED(head_size)] */
  float *stats;        /* [num_parts, 2, num_heads]: the largest scores, the sums of weights */
} rs_plan;

/* The first position that a token at `position` sees. */
static inline int64_t rs_first_seen(int64_t position, int64_t window) {
  return window && position >= window ? position + 1 - window : 0;
}

static inline int64_t rs_head_groups(const rs_plan *plan) {
  return (plan->num_kv_heads + plan->item_heads - 1) / plan->item_heads;
}

#endif
