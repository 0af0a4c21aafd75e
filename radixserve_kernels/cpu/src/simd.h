/* Vectors of 16 floats for every body: one AVX-512 register, two of AVX2, four of 128 bits.
 *
 * The only file with intrinsics. Every operation is one IEEE operation a lane, so a body changes no
 * bits; rs_fma is fused on AVX-512, AVX2 and NEON, and two roundings on a portable x86-64 body.
 * rs_max and rs_min give their SECOND argument where either is NaN.
 */
#ifndef RS_SIMD_H
#define RS_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(RS_BODY_AVX512) || defined(RS_BODY_AVX2)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define RS_LANES 16
#define RS_INLINE static inline __attribute__((always_inline))
#define RS_UNROLL _Pragma("GCC unroll 32")
#define RS_ROLLED _Pragma("GCC unroll 1")
#define RS_PREFETCH(p) __builtin_prefetch(p, 0, 2) /* into the second cache */
#define RS_LINE 64 /* bytes of the caches */

/* ---- vectors: rs_v of floats, rs_i of int32 ---- */

#if defined(RS_BODY_AVX512)

typedef __m512 rs_v;
typedef __m512i rs_i;

RS_INLINE __mmask16 rs_first(int n) { return (__mmask16)((1u << n) - 1u); }
RS_INLINE rs_v rs_set1(float x) { return _mm512_set1_ps(x); }
RS_INLINE rs_v rs_load(const float *p) { return _mm512_loadu_ps(p); }
RS_INLINE void rs_store(float *p, rs_v a) { _mm512_storeu_ps(p, a); }
RS_INLINE rs_v rs_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(rs_first(n), p); }
RS_INLINE void rs_store_n(float *p, rs_v a, int n) { _mm512_mask_storeu_ps(p, rs_first(n), a); }
RS_INLINE void rs_store_half(float *p, rs_v a, const int first) { /* 8 lanes, at p + first */
  _mm256_storeu_ps(p + first,
                   first ? _mm512_extractf32x8_ps(a, 1) : _mm512_castps512_ps256(a));
}
RS_INLINE rs_v rs_add(rs_v a, rs_v b) { return _mm512_add_ps(a, b); }
RS_INLINE rs_v rs_sub(rs_v a, rs_v b) { return _mm512_sub_ps(a, b); }
RS_INLINE rs_v rs_mul(rs_v a, rs_v b) { return _mm512_mul_ps(a, b); }
RS_INLINE rs_v rs_div(rs_v a, rs_v b) { return _mm512_div_ps(a, b); }
RS_INLINE rs_v rs_fma(rs_v a, rs_v b, rs_v c) { return _mm512_fmadd_ps(a, b, c); }
RS_INLINE rs_v rs_max(rs_v a, rs_v b) { return _mm512_max_ps(a, b); }
RS_INLINE rs_v rs_min(rs_v a, rs_v b) { return _mm512_min_ps(a, b); }
RS_INLINE rs_v rs_round(rs_v a) { return _mm512_roundscale_ps(a, 8); } /* to even, no exception */
RS_INLINE rs_i rs_to_int(rs_v a) { return _mm512_cvtps_epi32(a); }
RS_INLINE rs_v rs_to_float(rs_i a) { return _mm512_cvtepi32_ps(a); }
RS_INLINE rs_v rs_as_float(rs_i a) { return _mm512_castsi512_ps(a); }
RS_INLINE rs_i rs_iset1(int32_t x) { return _mm512_set1_epi32(x); }
RS_INLINE rs_i rs_iadd(rs_i a, rs_i b) { return _mm512_add_epi32(a, b); }
RS_INLINE rs_i rs_isub(rs_i a, rs_i b) { return _mm512_sub_epi32(a, b); }
RS_INLINE rs_i rs_iand(rs_i a, rs_i b) { return _mm512_and_si512(a, b); }
#define rs_shl(a, bits) _mm512_slli_epi32(a, bits)
#define rs_shr(a, bits) _mm512_srli_epi32(a, bits) /* logical */
#define rs_sar(a, bits) _mm512_srai_epi32(a, bits) /* keeps the sign */
RS_INLINE rs_i rs_load_words(const uint8_t *p) { return _mm512_loadu_si512(p); }
RS_INLINE rs_i rs_load_i8(const int8_t *p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
RS_INLINE rs_i rs_load_u16(const uint16_t *p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
RS_INLINE rs_v rs_load_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
RS_INLINE void rs_store_f16(uint16_t *p, rs_v a) { /* to nearest even */
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, 8));
}
/* Lanes 4 i .. 4 i + 3: the floats at p + i * stride. */
RS_INLINE rs_v rs_load_quads(const float *p, int64_t stride) {
  rs_v x = _mm512_castps128_ps512(_mm_loadu_ps(p));
  x = _mm512_insertf32x4(x, _mm_loadu_ps(p + stride), 1);
  x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 2 * stride), 2);
  return _mm512_insertf32x4(x, _mm_loadu_ps(p + 3 * stride), 3);
}
/* Lane 4 i + j of x[k] and lane 4 i + k of x[j] change places. */
RS_INLINE void rs_transpose_quads(rs_v x[4]) {
  __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
  __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
  __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
  __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
  x[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
  x[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
  x[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
  x[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
}
/* Lanes i and i ^ 1, i ^ 2, i ^ 4 or i ^ 8 change places. */
RS_INLINE rs_v rs_swap1(rs_v x) { return _mm512_permute_ps(x, 0xb1); }
RS_INLINE rs_v rs_swap2(rs_v x) { return _mm512_permute_ps(x, 0x4e); }
RS_INLINE rs_v rs_swap4(rs_v x) { return _mm512_shuffle_f32x4(x, x, 0xb1); }
RS_INLINE rs_v rs_swap8(rs_v x) { return _mm512_shuffle_f32x4(x, x, 0x4e); }
RS_INLINE float rs_lane0(rs_v x) { return _mm512_cvtss_f32(x); }
/* Lanes 2 i and 2 i + 1 are both what the first, or the second, of them was. */
RS_INLINE rs_v rs_even_twice(rs_v x) { return _mm512_moveldup_ps(x); }
RS_INLINE rs_v rs_odd_twice(rs_v x) { return _mm512_movehdup_ps(x); }

#elif defined(RS_BODY_AVX2)

typedef struct { __m256 a, b; } rs_v;
typedef struct { __m256i a, b; } rs_i;

#define RS_V(lo, hi) ((rs_v){(lo), (hi)})
#define RS_I(lo, hi) ((rs_i){(lo), (hi)})
RS_INLINE __m256i rs_first8(int n) { /* the first n of 8 lanes; n may be below 0 or above 8 */
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
RS_INLINE rs_v rs_set1(float x) { return RS_V(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
RS_INLINE rs_v rs_load(const float *p) { return RS_V(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
RS_INLINE void rs_store(float *p, rs_v x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
RS_INLINE void rs_store_half(float *p, rs_v x, const int first) { /* 8 lanes, at p + first */
  _mm256_storeu_ps(p + first, first ? x.b : x.a);
}
RS_INLINE rs_v rs_load_n(const float *p, int n) {
  return RS_V(_mm256_maskload_ps(p, rs_first8(n)), _mm256_maskload_ps(p + 8, rs_first8(n - 8)));
}
RS_INLINE void rs_store_n(float *p, rs_v x, int n) {
  _mm256_maskstore_ps(p, rs_first8(n), x.a);
  _mm256_maskstore_ps(p + 8, rs_first8(n - 8), x.b);
}
RS_INLINE rs_v rs_add(rs_v x, rs_v y) {
  return RS_V(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}
RS_INLINE rs_v rs_sub(rs_v x, rs_v y) {
  return RS_V(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}
RS_INLINE rs_v rs_mul(rs_v x, rs_v y) {
  return RS_V(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}
RS_INLINE rs_v rs_div(rs_v x, rs_v y) {
  return RS_V(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}
RS_INLINE rs_v rs_fma(rs_v x, rs_v y, rs_v z) {
  return RS_V(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
RS_INLINE rs_v rs_max(rs_v x, rs_v y) {
  return RS_V(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}
RS_INLINE rs_v rs_min(rs_v x, rs_v y) {
  return RS_V(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}
RS_INLINE rs_v rs_round(rs_v x) {
  return RS_V(_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8));
}
RS_INLINE rs_i rs_to_int(rs_v x) {
  return RS_I(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
}
RS_INLINE rs_v rs_to_float(rs_i x) {
  return RS_V(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b));
}
RS_INLINE rs_v rs_as_float(rs_i x) {
  return RS_V(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b));
}
RS_INLINE rs_i rs_iset1(int32_t x) { return RS_I(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
RS_INLINE rs_i rs_iadd(rs_i x, rs_i y) {
  return RS_I(_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b));
}
RS_INLINE rs_i rs_isub(rs_i x, rs_i y) {
  return RS_I(_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b));
}
RS_INLINE rs_i rs_iand(rs_i x, rs_i y) {
  return RS_I(_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b));
}
#define rs_shl(x, bits) RS_I(_mm256_slli_epi32((x).a, bits), _mm256_slli_epi32((x).b, bits))
#define rs_shr(x, bits) RS_I(_mm256_srli_epi32((x).a, bits), _mm256_srli_epi32((x).b, bits))
#define rs_sar(x, bits) RS_I(_mm256_srai_epi32((x).a, bits), _mm256_srai_epi32((x).b, bits))
RS_INLINE rs_i rs_load_words(const uint8_t *p) {
  return RS_I(_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32)));
}
RS_INLINE rs_i rs_load_i8(const int8_t *p) {
  return RS_I(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)),
              _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))));
}
RS_INLINE rs_i rs_load_u16(const uint16_t *p) {
  return RS_I(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
              _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8))));
}
RS_INLINE rs_v rs_load_f16(const uint16_t *p) {
  return RS_V(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
              _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
RS_INLINE void rs_store_f16(uint16_t *p, rs_v x) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, 8));
  _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, 8));
}
RS_INLINE __m256 rs_load_quads8(const float *low, const float *high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}
RS_INLINE rs_v rs_load_quads(const float *p, int64_t stride) {
  return RS_V(rs_load_quads8(p, p + stride), rs_load_quads8(p + 2 * stride, p + 3 * stride));
}
RS_INLINE void rs_transpose_quads8(__m256 *a, __m256 *b, __m256 *c, __m256 *d) {
  __m256d low01 = _mm256_castps_pd(_mm256_unpacklo_ps(*a, *b));
  __m256d high01 = _mm256_castps_pd(_mm256_unpackhi_ps(*a, *b));
  __m256d low23 = _mm256_castps_pd(_mm256_unpacklo_ps(*c, *d));
  __m256d high23 = _mm256_castps_pd(_mm256_unpackhi_ps(*c, *d));
  *a = _mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23));
  *b = _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23));
  *c = _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23));
  *d = _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23));
}
RS_INLINE void rs_transpose_quads(rs_v x[4]) {
  rs_transpose_quads8(&x[0].a, &x[1].a, &x[2].a, &x[3].a);
  rs_transpose_quads8(&x[0].b, &x[1].b, &x[2].b, &x[3].b);
}
RS_INLINE rs_v rs_swap1(rs_v x) {
  return RS_V(_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1));
}
RS_INLINE rs_v rs_swap2(rs_v x) {
  return RS_V(_mm256_permute_ps(x.a, 0x4e), _mm256_permute_ps(x.b, 0x4e));
}
RS_INLINE rs_v rs_swap4(rs_v x) {
  return RS_V(_mm256_permute2f128_ps(x.a, x.a, 1), _mm256_permute2f128_ps(x.b, x.b, 1));
}
RS_INLINE rs_v rs_swap8(rs_v x) { return RS_V(x.b, x.a); }
RS_INLINE float rs_lane0(rs_v x) { return _mm256_cvtss_f32(x.a); }
RS_INLINE rs_v rs_even_twice(rs_v x) {
  return RS_V(_mm256_moveldup_ps(x.a), _mm256_moveldup_ps(x.b));
}
RS_INLINE rs_v rs_odd_twice(rs_v x) {
  return RS_V(_mm256_movehdup_ps(x.a), _mm256_movehdup_ps(x.b));
}

#else
#include "simd_portable.h"
#endif

/* ---- the same source for all bodies ---- */

RS_INLINE rs_v rs_zero(void) { return rs_set1(0.0f); }

RS_INLINE rs_v rs_load_bf16(const uint16_t *p) { return rs_as_float(rs_shl(rs_load_u16(p), 16)); }

/* The lanes' sum, as a tree: halves, quarters, pairs. */
RS_INLINE float rs_sum(rs_v x) {
  float t[RS_LANES];
  rs_store(t, x);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) t[i] += t[i + half];
  return t[0];
}

/* The lanes' maximum; not defined where a lane is NaN. */
RS_INLINE float rs_hmax(rs_v x) {
  float t[RS_LANES];
  rs_store(t, x);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
  return t[0];
}

/* The lanes' sum or maximum in every lane; the sum is the tree of rs_sum. */
RS_INLINE rs_v rs_sum_all(rs_v x) {
  x = rs_add(x, rs_swap8(x));
  x = rs_add(x, rs_swap4(x));
  x = rs_add(x, rs_swap2(x));
  return rs_add(x, rs_swap1(x));
}
RS_INLINE rs_v rs_max_all(rs_v x) {
  x = rs_max(x, rs_swap8(x));
  x = rs_max(x, rs_swap4(x));
  x = rs_max(x, rs_swap2(x));
  return rs_max(x, rs_swap1(x));
}

/* 2^n for n in [-126, 127]. */
RS_INLINE rs_v rs_exp2i(rs_i n) { return rs_as_float(rs_shl(rs_iadd(n, rs_iset1(127)), 23)); }

/* e^x to about one unit in the last place; 0 below -104, inf above 89; NaN stays NaN. */
RS_INLINE rs_v rs_exp(rs_v x) {
  x = rs_max(rs_set1(-104.5f), x);
  x = rs_min(rs_set1(89.5f), x);
  rs_v n = rs_round(rs_mul(x, rs_set1(1.44269504088896341f)));
  rs_v r = rs_fma(n, rs_set1(-0.693145751953125f), x); /* exact: n has few bits */
  r = rs_fma(n, rs_set1(-1.42860682030941723e-6f), r);
  rs_v p = rs_set1(1.0f / 5040.0f);
  p = rs_fma(p, r, rs_set1(1.0f / 720.0f));
  p = rs_fma(p, r, rs_set1(1.0f / 120.0f));
  p = rs_fma(p, r, rs_set1(1.0f / 24.0f));
  p = rs_fma(p, r, rs_set1(1.0f / 6.0f));
  p = rs_fma(p, r, rs_set1(0.5f));
  p = rs_fma(p, r, rs_set1(1.0f));
  p = rs_fma(p, r, rs_set1(1.0f));
  rs_i whole = rs_to_int(n), half = rs_sar(whole, 1); /* in two steps: 2^n may be subnormal */
  return rs_mul(rs_mul(p, rs_exp2i(half)), rs_exp2i(rs_isub(whole, half)));
}

#endif
