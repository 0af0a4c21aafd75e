/* Own threads, without an OpenMP runtime beside torch's. */
#ifndef RS_POOL_H
#define RS_POOL_H

#include <stdint.h>

typedef void rs_task(void *context, int64_t task);

/* Calls task(context, 0 .. tasks - 1), each once, in any order, on the caller and the pool's
 * threads, and returns when all are done. A task must not depend on which thread it runs on. With
 * one thread, from inside a task, or while another call is under way, the caller does all alone. */
void rs_parallel(rs_task *task, void *context, int64_t tasks);

/* How many threads compute, the caller's own included; threads are started when first needed. */
int64_t rs_threads(void);

#endif
