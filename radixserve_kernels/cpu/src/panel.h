/* How packed weights lie in memory: panels of 16 outputs, one after the other, lanes are outputs.
 *
 *   RS_F32, RS_BF16   [inputs][16] values
 *   RS_Q8_0           for each 32 inputs: scale d [16] fp16, then codes [32][16] int8
 *   RS_Q4_0           for each 32 inputs: d [16] fp16, then words [4][16] of 32 bits with the codes
 *                     of 8 inputs, the first in the lowest four bits; a weight is d * (code - 8)
 *   RS_Q4_1           the same with d and m [16] fp16; a weight is d * code + m
 *
 * Where not said, a weight is d * code. Outputs beyond the last have weights of 0.
 */
#ifndef RS_PANEL_H
#define RS_PANEL_H

#include <stdint.h>

#define RS_PANEL 16 /* outputs */
#define RS_BLOCK 32 /* inputs that share a scale */
#define RS_WORD 8   /* inputs whose codes of four bits are in a word */
#define RS_HALVES (RS_PANEL * 2) /* bytes of 16 fp16 values */

enum rs_kind { RS_F32, RS_BF16, RS_Q8_0, RS_Q4_0, RS_Q4_1 };

/* Bytes of a panel's `inputs` (whole blocks where there are blocks). */
static inline int64_t rs_panel_bytes(int64_t kind, int64_t inputs) {
  switch (kind) {
    case RS_F32: return inputs * RS_PANEL * 4;
    case RS_BF16: return inputs * RS_PANEL * 2;
    case RS_Q8_0: return inputs / RS_BLOCK * (RS_HALVES + RS_BLOCK * RS_PANEL);
    case RS_Q4_0: return inputs / RS_BLOCK * (RS_HALVES + RS_BLOCK / 2 * RS_PANEL);
    default: return inputs / RS_BLOCK * (2 * RS_HALVES + RS_BLOCK / 2 * RS_PANEL);
  }
}

#endif
