// A wall clock that a test can set under a running process. Loaded before the C library, this answers
// with the kernel's time and as many seconds as stand in the file TEST_CLOCK. What measures how much
// time has passed (CLOCK_MONOTONIC and its like) is the kernel's own.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t nothing = 0;
static const volatile int64_t *seconds_ahead = &nothing;

// Before main: the process may move its environment later.
__attribute__((constructor)) static void find_the_file(void) {
  const char *path = getenv("TEST_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *page = mmap(NULL, sizeof *seconds_ahead, PROT_READ, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) {
    perror("the clock that is to be set: TEST_CLOCK");
    abort();
  }
  close(file);
  seconds_ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && clock == CLOCK_REALTIME) now->tv_sec += (time_t)*seconds_ahead;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec precise;
  int failed = clock_gettime(CLOCK_REALTIME, &precise);
  if (failed) return failed;
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return (time_t)-1;
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}
