/* simd.h's vectors for any processor: GCC's vectors of 128 bits, which become SSE2 or NEON. */
#ifndef RS_SIMD_PORTABLE_H
#define RS_SIMD_PORTABLE_H

#include <math.h>

typedef float rs_f4 __attribute__((vector_size(16)));
typedef int32_t rs_i4 __attribute__((vector_size(16)));
typedef struct { rs_f4 q[4]; } rs_v;
typedef struct { rs_i4 q[4]; } rs_i;

#define RS_EACH for (int i = 0; i < 4; i++)
#define RS_MADE(type, expression) \
  type out;                       \
  RS_UNROLL RS_EACH { out.q[i] = (expression); } \
  return out;

RS_INLINE rs_f4 rs_f4_set1(float x) { return (rs_f4){x, x, x, x}; }
RS_INLINE rs_f4 rs_f4_fma(rs_f4 a, rs_f4 b, rs_f4 c) {
#if defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
  return (rs_f4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c; /* two roundings: see the flags in build.py */
#endif
}
RS_INLINE rs_f4 rs_f4_pick(rs_i4 mask, rs_f4 a, rs_f4 b) {
  return (rs_f4)((mask & (rs_i4)a) | (~mask & (rs_i4)b));
}

RS_INLINE rs_v rs_set1(float x) { RS_MADE(rs_v, rs_f4_set1(x)) }
RS_INLINE rs_v rs_load(const float *p) {
  rs_v out;
  memcpy(&out, p, sizeof out);
  return out;
}
RS_INLINE void rs_store(float *p, rs_v x) { memcpy(p, &x, sizeof x); }
RS_INLINE void rs_store_half(float *p, rs_v x, const int first) { /* 8 lanes, at p + first */
  memcpy(p + first, x.q + first / 4, sizeof x / 2);
}
RS_INLINE rs_v rs_load_n(const float *p, int n) {
  float t[RS_LANES] = {0};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return rs_load(t);
}
RS_INLINE void rs_store_n(float *p, rs_v x, int n) {
  float t[RS_LANES];
  rs_store(t, x);
  for (int i = 0; i < n; i++) p[i] = t[i];
}
RS_INLINE rs_v rs_add(rs_v x, rs_v y) { RS_MADE(rs_v, x.q[i] + y.q[i]) }
RS_INLINE rs_v rs_sub(rs_v x, rs_v y) { RS_MADE(rs_v, x.q[i] - y.q[i]) }
RS_INLINE rs_v rs_mul(rs_v x, rs_v y) { RS_MADE(rs_v, x.q[i] * y.q[i]) }
RS_INLINE rs_v rs_div(rs_v x, rs_v y) { RS_MADE(rs_v, x.q[i] / y.q[i]) }
RS_INLINE rs_v rs_fma(rs_v x, rs_v y, rs_v z) { RS_MADE(rs_v, rs_f4_fma(x.q[i], y.q[i], z.q[i])) }
RS_INLINE rs_v rs_max(rs_v x, rs_v y) {
  RS_MADE(rs_v, rs_f4_pick(x.q[i] > y.q[i], x.q[i], y.q[i]))
}
RS_INLINE rs_v rs_min(rs_v x, rs_v y) {
  RS_MADE(rs_v, rs_f4_pick(x.q[i] < y.q[i], x.q[i], y.q[i]))
}
/* To even, for |x| < 2^22: the addition leaves no room for a fraction. */
RS_INLINE rs_v rs_round(rs_v x) {
  rs_f4 magic = rs_f4_set1(12582912.0f);
  RS_MADE(rs_v, (x.q[i] + magic) - magic)
}
RS_INLINE rs_i rs_to_int(rs_v x) { RS_MADE(rs_i, __builtin_convertvector(x.q[i], rs_i4)) }
RS_INLINE rs_v rs_to_float(rs_i x) { RS_MADE(rs_v, __builtin_convertvector(x.q[i], rs_f4)) }
RS_INLINE rs_v rs_as_float(rs_i x) { RS_MADE(rs_v, (rs_f4)x.q[i]) }
RS_INLINE rs_i rs_iset1(int32_t x) { RS_MADE(rs_i, ((rs_i4){x, x, x, x})) }
RS_INLINE rs_i rs_iadd(rs_i x, rs_i y) { RS_MADE(rs_i, x.q[i] + y.q[i]) }
RS_INLINE rs_i rs_isub(rs_i x, rs_i y) { RS_MADE(rs_i, x.q[i] - y.q[i]) }
RS_INLINE rs_i rs_iand(rs_i x, rs_i y) { RS_MADE(rs_i, x.q[i] & y.q[i]) }
RS_INLINE rs_i rs_shl(rs_i x, int bits) { RS_MADE(rs_i, x.q[i] << bits) }
RS_INLINE rs_i rs_sar(rs_i x, int bits) { RS_MADE(rs_i, x.q[i] >> bits) }
RS_INLINE rs_i rs_shr(rs_i x, int bits) {
  typedef uint32_t u4 __attribute__((vector_size(16)));
  RS_MADE(rs_i, (rs_i4)((u4)x.q[i] >> bits))
}
#define RS_WIDENED(p)                                                             \
  int32_t t[RS_LANES];                                                            \
  for (int i = 0; i < RS_LANES; i++) t[i] = (p)[i];                               \
  rs_i out;                                                                       \
  memcpy(&out, t, sizeof out);                                                    \
  return out;
RS_INLINE rs_i rs_load_words(const uint8_t *p) {
  rs_i out;
  memcpy(&out, p, sizeof out);
  return out;
}
RS_INLINE rs_i rs_load_i8(const int8_t *p) { RS_WIDENED(p) }
RS_INLINE rs_i rs_load_u16(const uint16_t *p) { RS_WIDENED(p) }

RS_INLINE float rs_from_f16(uint16_t h) {
  uint32_t magnitude = h & 0x7fffu, bits;
  float out;
  if (magnitude >= 0x7c00u) { /* infinity or NaN, made quiet as F16C does */
    bits = 0x7f800000u | (magnitude & 0x3ffu) << 13 | (magnitude > 0x7c00u ? 0x400000u : 0u);
    memcpy(&out, &bits, 4);
  } else if (magnitude < 0x400u) {
    out = (float)magnitude * 0x1p-24f;
  } else {
    bits = (magnitude << 13) + (112u << 23);
    memcpy(&out, &bits, 4);
  }
  return h & 0x8000u ? -out : out;
}
RS_INLINE uint16_t rs_to_f16(float x) {
  uint32_t bits, sign, out;
  memcpy(&bits, &x, 4);
  sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) {
    out = 0x7e00u | (bits >> 13 & 0x3ffu);
  } else if (bits >= 0x47800000u) { /* from 65,536 on */
    out = 0x7c00u;
  } else if (bits < 0x38800000u) { /* subnormal: the addition rounds to units of 2^-24 */
    float magnitude;
    memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    memcpy(&out, &magnitude, 4);
    out -= 0x3f000000u;
  } else { /* may carry into infinity, as it should */
    out = (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;
  }
  return (uint16_t)(sign | out);
}
RS_INLINE rs_v rs_load_f16(const uint16_t *p) {
  float t[RS_LANES];
  for (int i = 0; i < RS_LANES; i++) t[i] = rs_from_f16(p[i]);
  return rs_load(t);
}
RS_INLINE void rs_store_f16(uint16_t *p, rs_v x) {
  float t[RS_LANES];
  rs_store(t, x);
  for (int i = 0; i < RS_LANES; i++) p[i] = rs_to_f16(t[i]);
}

#if defined(__clang__)
#define RS_SHUFFLE(a, b, w, x, y, z) __builtin_shufflevector(a, b, w, x, y, z)
#else
#define RS_SHUFFLE(a, b, w, x, y, z) __builtin_shuffle(a, b, (rs_i4){w, x, y, z})
#endif
RS_INLINE rs_v rs_load_quads(const float *p, int64_t stride) {
  rs_v out;
  for (int i = 0; i < 4; i++) memcpy(&out.q[i], p + i * stride, sizeof out.q[i]);
  return out;
}
RS_INLINE void rs_transpose_quads(rs_v x[4]) {
  for (int i = 0; i < 4; i++) {
    rs_f4 low01 = RS_SHUFFLE(x[0].q[i], x[1].q[i], 0, 4, 1, 5);
    rs_f4 high01 = RS_SHUFFLE(x[0].q[i], x[1].q[i], 2, 6, 3, 7);
    rs_f4 low23 = RS_SHUFFLE(x[2].q[i], x[3].q[i], 0, 4, 1, 5);
    rs_f4 high23 = RS_SHUFFLE(x[2].q[i], x[3].q[i], 2, 6, 3, 7);
    x[0].q[i] = RS_SHUFFLE(low01, low23, 0, 1, 4, 5);
    x[1].q[i] = RS_SHUFFLE(low01, low23, 2, 3, 6, 7);
    x[2].q[i] = RS_SHUFFLE(high01, high23, 0, 1, 4, 5);
    x[3].q[i] = RS_SHUFFLE(high01, high23, 2, 3, 6, 7);
  }
}
RS_INLINE rs_v rs_swap1(rs_v x) { RS_MADE(rs_v, RS_SHUFFLE(x.q[i], x.q[i], 1, 0, 3, 2)) }
RS_INLINE rs_v rs_swap2(rs_v x) { RS_MADE(rs_v, RS_SHUFFLE(x.q[i], x.q[i], 2, 3, 0, 1)) }
RS_INLINE rs_v rs_swap4(rs_v x) { RS_MADE(rs_v, x.q[i ^ 1]) }
RS_INLINE rs_v rs_swap8(rs_v x) { RS_MADE(rs_v, x.q[i ^ 2]) }
RS_INLINE float rs_lane0(rs_v x) { return x.q[0][0]; }
RS_INLINE rs_v rs_even_twice(rs_v x) { RS_MADE(rs_v, RS_SHUFFLE(x.q[i], x.q[i], 0, 0, 2, 2)) }
RS_INLINE rs_v rs_odd_twice(rs_v x) { RS_MADE(rs_v, RS_SHUFFLE(x.q[i], x.q[i], 1, 1, 3, 3)) }

#endif
