/* A clock that is wrong by AHEAD seconds, preloaded into every program of a machine of the bed.

What a program is told of the real time is shifted, and a wait until a real time is shifted back.
Monotonic clocks are right, and so are the times of files, which are the server's. Slurm's daemons
are left alone: by its own times the bed's credentials live for seconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *const RIGHT[] = {"munged", "slurmd", "slurmstepd", NULL};
static long ahead = AHEAD;

__attribute__((constructor)) static void leave_daemons(void) {
    for (const char *const *name = RIGHT; *name; name++)
        if (!strcmp(program_invocation_short_name, *name)) ahead = 0;
}

static int is_real(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && is_real(clock)) now->tv_sec += ahead;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (!result) now->tv_sec += ahead;
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

/* Waits until a time. What is no real time lies in the first years after the epoch. */
static const struct timespec *real(const struct timespec *until, struct timespec *into) {
    if (!until || until->tv_sec < 1000000000) return until;
    *into = *until;
    into->tv_sec -= ahead;
    return into;
}

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted, struct timespec *left) {
    struct timespec shifted;
    return NEXT(clock_nanosleep)(clock, flags, flags & TIMER_ABSTIME ? real(wanted, &shifted) : wanted, left);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    struct timespec shifted;
    return NEXT(sem_timedwait)(semaphore, real(until, &shifted));
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec shifted;
    return NEXT(pthread_mutex_timedlock)(mutex, real(until, &shifted));
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
    struct timespec shifted;
    return NEXT(pthread_cond_clockwait)(cond, mutex, clock, real(until, &shifted));
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
    /* Its older version, which dlsym may find, knows no clocks. */
    clockid_t clock = until->tv_sec < 1000000000 ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    return pthread_cond_clockwait(cond, mutex, clock, until);
}
