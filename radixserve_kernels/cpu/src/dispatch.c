/* Chooses one body for all operators, and exports them. */
#include "ops.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define FIELD(name, parameters, arguments) void (*name) parameters;
struct table {
  const char *body;
  RS_OPS(FIELD)
};

#define DECLARED(body, name, parameters) void rs_##name##_##body parameters;
#define ENTRY(body, name) .name = rs_##name##_##body,

#define PORTABLE_DECLARED(name, parameters, arguments) DECLARED(portable, name, parameters)
#define PORTABLE_ENTRY(name, parameters, arguments) ENTRY(portable, name)
RS_OPS(PORTABLE_DECLARED)
static const struct table portable = {.body = "portable", RS_OPS(PORTABLE_ENTRY)};

#ifdef RS_HAS_X86_BODIES
#define AVX2_DECLARED(name, parameters, arguments) DECLARED(avx2, name, parameters)
#define AVX2_ENTRY(name, parameters, arguments) ENTRY(avx2, name)
#define AVX512_DECLARED(name, parameters, arguments) DECLARED(avx512, name, parameters)
#define AVX512_ENTRY(name, parameters, arguments) ENTRY(avx512, name)
RS_OPS(AVX2_DECLARED)
RS_OPS(AVX512_DECLARED)
static const struct table avx2 = {.body = "avx2", RS_OPS(AVX2_ENTRY)};
static const struct table avx512 = {.body = "avx512", RS_OPS(AVX512_ENTRY)};
#endif

static const struct table *chosen = &portable;

/* The bodies that run here, the best first, as names with commas between. */
EXPORT const char *rs_bodies(void) {
#ifdef RS_HAS_X86_BODIES
  __builtin_cpu_init();
  int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __builtin_cpu_supports("f16c");
  int has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512dq");
  return has_avx512 ? "avx512,avx2,portable" : has_avx2 ? "avx2,portable" : "portable";
#else
  return "portable";
#endif
}

/* Takes one of rs_bodies() for all calls from here on. Returns 0, or 1 for any other name. */
EXPORT int rs_choose(const char *body) {
  const struct table *tables[] = {
      &portable,
#ifdef RS_HAS_X86_BODIES
      &avx2, &avx512,
#endif
  };
  size_t length = strlen(body);
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    if (strcmp(tables[i]->body, body) != 0) continue;
    const char *at = strstr(rs_bodies(), body);
    if (at && (at[length] == ',' || at[length] == '\0')) {
      chosen = tables[i];
      return 0;
    }
  }
  return 1;
}

EXPORT const char *rs_body(void) { return chosen->body; }

#define EXPORTED(name, parameters, arguments) \
  EXPORT void rs_##name parameters { chosen->name arguments; }
RS_OPS(EXPORTED)
