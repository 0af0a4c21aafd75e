/* Tasks are handed out by an atomic counter, so a thread that is not running delays only the task
 * that it holds. A thread enters and leaves a job under the mutex: once the job is closed and
 * nobody is inside, its memory is the caller's again, and a thread that wakes late finds it closed.
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
#define SPIN_NS 5000 /* then a thread sleeps: waiting must not take cores from others */
#define CHECK_EVERY 32 /* pauses between two looks at the clock */

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER; /* held while a job is under way */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static pthread_t workers[MAX_THREADS];
static _Atomic int64_t wanted = 1; /* threads, the caller's included */
static int started;                /* workers that exist */
static int quit;
static int sleeping; /* workers in pthread_cond_wait */
static rs_task *job;
static void *job_context;
static int64_t job_tasks;
static _Atomic int64_t next_task;
static _Atomic int inside;         /* workers that may touch the job */
static _Atomic uint64_t generation; /* counts jobs and stops; the last job may be closed already */
static int is_open;

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

static void spin_while_generation(uint64_t seen) {
  int64_t end = now_ns() + SPIN_NS;
  do {
    for (int i = 0; i < CHECK_EVERY; i++) {
      if (atomic_load_explicit(&generation, memory_order_acquire) != seen) return;
      RS_PAUSE();
    }
  } while (now_ns() < end);
}

static void *worker(void *unused) {
  (void)unused;
  pthread_mutex_lock(&mutex);
  uint64_t seen = 0;
  while (!quit) {
    if (atomic_load(&generation) != seen && is_open) {
      seen = atomic_load(&generation);
      atomic_fetch_add(&inside, 1);
      rs_task *task = job;
      void *context = job_context;
      int64_t tasks = job_tasks;
      pthread_mutex_unlock(&mutex);
      run_tasks(task, context, tasks);
      pthread_mutex_lock(&mutex);
      if (atomic_fetch_sub(&inside, 1) == 1) pthread_cond_signal(&done);
      continue;
    }
    seen = atomic_load(&generation);
    pthread_mutex_unlock(&mutex);
    spin_while_generation(seen);
    pthread_mutex_lock(&mutex);
    sleeping++;
    while (atomic_load(&generation) == seen && !quit) pthread_cond_wait(&work, &mutex);
    sleeping--;
  }
  pthread_mutex_unlock(&mutex);
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

static void open_job(rs_task *task, void *context, int64_t tasks) {
  pthread_mutex_lock(&mutex);
  job = task, job_context = context, job_tasks = tasks;
  atomic_store(&next_task, 0);
  is_open = 1;
  atomic_fetch_add(&generation, 1);
  if (sleeping) pthread_cond_broadcast(&work);
  pthread_mutex_unlock(&mutex);
}

static void close_job(void) {
  pthread_mutex_lock(&mutex);
  is_open = 0;
  pthread_mutex_unlock(&mutex);
  int64_t end = now_ns() + SPIN_NS;
  while (atomic_load(&inside) && now_ns() < end) RS_PAUSE();
  pthread_mutex_lock(&mutex); /* also so that the last one out is through with it */
  while (atomic_load(&inside)) pthread_cond_wait(&done, &mutex);
  pthread_mutex_unlock(&mutex);
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
  pthread_mutex_lock(&mutex);
  quit = 1;
  atomic_fetch_add(&generation, 1);
  pthread_cond_broadcast(&work);
  pthread_mutex_unlock(&mutex);
  while (started) pthread_join(workers[--started], NULL);
  quit = 0;
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
  started = quit = sleeping = is_open = 0;
  atomic_store(&inside, 0);
}

__attribute__((constructor)) static void at_load(void) { pthread_atfork(NULL, NULL, after_fork); }
