/* Tasks are handed out by an atomic counter, so a thread that is not running delays only the task
 * that it holds. A job is opened, entered, left and closed by one atomic word, since a decoding
 * step has hundreds of jobs of some microseconds: the mutex is for threads that sleep.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#define RS_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RS_PAUSE() __asm__ volatile("yield")
#else
#define RS_PAUSE() ((void)0)
#endif

#define EXPORT __attribute__((visibility("default")))
#define MAX_THREADS 256
#define STACK_BYTES (4 << 20) /* tasks keep their scratch there, and the default may be small */
#define SPIN_NS 50000 /* longer than what lies between two jobs of a step; then a thread sleeps */
#define CHECK_EVERY 32 /* pauses between two looks at the clock */
#define CACHE_LINE 128 /* two, which some processors fetch together */

/* The word `state`: which job, whether it may be entered, how many workers are inside. Once it is
 * closed and nobody is inside, the job's memory is the caller's again; who comes late finds it
 * closed. Jobs are told apart by 32 bits: a worker would have to miss 2^32 of them to be misled. */
#define OPEN UINT64_C(0x80000000)
#define INSIDE UINT64_C(0x7fffffff)

static _Alignas(CACHE_LINE) _Atomic uint64_t state;
static rs_task *job; /* these three change only while nobody is inside */
static void *job_context;
static int64_t job_tasks;
static _Alignas(CACHE_LINE) _Atomic int64_t next_task;

static _Alignas(CACHE_LINE) pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER; /* has the job */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of going to sleep and waking */
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static pthread_t workers[MAX_THREADS];
static _Atomic int64_t wanted = 1; /* threads, the caller's included */
static int started;                /* workers that exist; under `owner` */
static _Atomic int quit, sleeping, is_caller_asleep;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void run_tasks(rs_task *task, void *context, int64_t tasks) {
  for (;;) {
    int64_t i = atomic_fetch_add_explicit(&next_task, 1, memory_order_relaxed);
    if (i >= tasks) return;
    task(context, i);
  }
}

/* Whether the caller is now inside a job other than `*seen`, which then is that one. */
static int enter(uint32_t *seen) {
  uint64_t now = atomic_load(&state);
  while ((uint32_t)(now >> 32) != *seen) {
    if (now & OPEN && !atomic_compare_exchange_weak(&state, &now, now + 1)) continue;
    *seen = (uint32_t)(now >> 32);
    return (now & OPEN) != 0;
  }
  return 0;
}

static void leave(void) {
  uint64_t before = atomic_fetch_sub(&state, 1);
  if ((before & INSIDE) == 1 && atomic_load(&is_caller_asleep)) {
    pthread_mutex_lock(&mutex);
    pthread_cond_signal(&done);
    pthread_mutex_unlock(&mutex);
  }
}

static int is_unchanged(uint32_t seen) {
  return (uint32_t)(atomic_load(&state) >> 32) == seen && !atomic_load(&quit);
}

/* Who changes `state` looks at `sleeping` afterwards, who sleeps looks at `state` after having
 * said so: one of the two sees the other. The same holds between `leave` and `close_job`. */
static void wait_for_change(uint32_t seen) {
  int64_t end = now_ns() + SPIN_NS;
  do {
    for (int i = 0; i < CHECK_EVERY; i++) {
      if (!is_unchanged(seen)) return;
      RS_PAUSE();
    }
  } while (now_ns() < end);
  pthread_mutex_lock(&mutex);
  atomic_fetch_add(&sleeping, 1);
  while (is_unchanged(seen)) pthread_cond_wait(&work, &mutex);
  atomic_fetch_sub(&sleeping, 1);
  pthread_mutex_unlock(&mutex);
}

static void *worker(void *unused) {
  (void)unused;
  uint32_t seen = (uint32_t)(atomic_load(&state) >> 32) - 1; /* the job under way is for it too */
  while (!atomic_load(&quit)) {
    if (enter(&seen)) {
      run_tasks(job, job_context, job_tasks);
      leave();
    } else {
      wait_for_change(seen);
    }
  }
  return NULL;
}

/* Under `owner`. A thread that the system does not give is done without. */
static void start_workers(int64_t count) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigset_t all, before;
  sigfillset(&all); /* signals are for the program's own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (started < count && pthread_create(&workers[started], &attributes, worker, NULL) == 0) {
#ifdef __linux__
    char name[16]; /* as long as Linux takes */
    snprintf(name, sizeof name, "rs-cpu-%u", (unsigned)(started + 1) % 1000u);
    pthread_setname_np(workers[started], name);
#endif
    started++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
}

static void wake_workers(void) {
  if (!atomic_load(&sleeping)) return;
  pthread_mutex_lock(&mutex);
  pthread_cond_broadcast(&work);
  pthread_mutex_unlock(&mutex);
}

static void open_job(rs_task *task, void *context, int64_t tasks) {
  job = task, job_context = context, job_tasks = tasks;
  atomic_store(&next_task, 0);
  atomic_store(&state, ((atomic_load(&state) >> 32) + 1) << 32 | OPEN);
  wake_workers();
}

static void close_job(void) {
  atomic_fetch_and(&state, ~OPEN);
  int64_t end = 0;
  for (int i = 0; atomic_load(&state) & INSIDE; i++) {
    RS_PAUSE();
    if (i % CHECK_EVERY) continue;
    int64_t now = now_ns();
    if (!end) end = now + SPIN_NS;
    if (now < end) continue;
    pthread_mutex_lock(&mutex);
    atomic_store(&is_caller_asleep, 1);
    while (atomic_load(&state) & INSIDE) pthread_cond_wait(&done, &mutex);
    atomic_store(&is_caller_asleep, 0);
    pthread_mutex_unlock(&mutex);
  }
}

EXPORT void rs_parallel(rs_task *task, void *context, int64_t tasks) {
  int64_t threads = atomic_load_explicit(&wanted, memory_order_relaxed);
  if (threads == 1 || tasks <= 1 || pthread_mutex_trylock(&owner) != 0) {
    for (int64_t i = 0; i < tasks; i++) task(context, i);
    return;
  }
  if (started < threads - 1) start_workers(threads - 1);
  open_job(task, context, tasks);
  run_tasks(task, context, tasks);
  close_job();
  pthread_mutex_unlock(&owner);
}

int64_t rs_threads(void) { return atomic_load(&wanted); }

/* Waits for a job under way; not to be called from a task. Returns the number that now holds. */
EXPORT int64_t rs_set_threads(int64_t threads) {
  threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
  pthread_mutex_lock(&owner);
  atomic_store(&quit, 1);
  wake_workers();
  while (started) pthread_join(workers[--started], NULL);
  atomic_store(&quit, 0);
  atomic_store(&wanted, threads);
  pthread_mutex_unlock(&owner);
  return threads;
}

/* A child has the caller's thread only: as if none had been started. */
static void after_fork(void) {
  pthread_mutex_init(&owner, NULL);
  pthread_mutex_init(&mutex, NULL);
  pthread_cond_init(&work, NULL);
  pthread_cond_init(&done, NULL);
  started = 0;
  atomic_store(&quit, 0);
  atomic_store(&sleeping, 0);
  atomic_store(&is_caller_asleep, 0);
  atomic_store(&state, 0);
}

__attribute__((constructor)) static void at_load(void) { pthread_atfork(NULL, NULL, after_fork); }
