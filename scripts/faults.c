// Faults of a machine, for the process that this library is loaded into before the C library. What is to go wrong
// stands in a page of numbers that scripts/faults shares with the process (FAULTS_CONTROL); what did go wrong is counted
// there. Only regular files below FAULTS_UNDER are concerned.
//
// With FAULTS_UNDO, what each write replaces is kept in a file named by the inode there, until the inode is synced: so
// scripts/faults can take back what a loss of power would have taken. Writes of stdio (Redis's base files) and names of
// files are not kept so; they count as durable at once.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// The same order as NUMBERS in scripts/faults_world.py.
struct control {
  int64_t wall_ns, passed_ns;            // ahead of CLOCK_REALTIME, and of CLOCK_MONOTONIC
  int64_t write_errno, write_one_in;     // fails one write in so many; 0: none
  int64_t sync_errno, sync_one_in;
  int64_t read_errno, read_one_in;
  int64_t is_bounded, room;              // bytes by which files may still grow
  int64_t lies;                          // a sync that does nothing and says that it did
  int64_t slow_us, slow_one_in;          // one sync in so many takes so much longer; 0: none
  int64_t failed_writes, failed_syncs, failed_reads, without_room, lied_syncs, slow_syncs, syncs, writes;
};

static struct control nothing;
static volatile struct control *control = &nothing;
static const char *under, *undo;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
// A file whose sync has failed: later syncs do not bring back what the kernel has dropped.
static ino_t failed[16];
static int failed_count;

#define NEXT(name) ({ static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); next; })
#define COUNT(what) __atomic_add_fetch(&control->what, 1, __ATOMIC_RELAXED)

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULTS_CONTROL");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  void *page = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) {
    perror("the page of faults: FAULTS_CONTROL");
    abort();
  }
  close(file);
  // Copies: Redis writes its title over its environment.
  under = getenv("FAULTS_UNDER") ? strdup(getenv("FAULTS_UNDER")) : NULL;
  undo = getenv("FAULTS_UNDO") ? strdup(getenv("FAULTS_UNDO")) : NULL;
  control = page;
}

static int is_ours(int fd, struct stat *file) {
  char name[32], path[4096];
  if (!under || fstat(fd, file) != 0 || !S_ISREG(file->st_mode)) return 0;
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(name, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  // The index of SQLite's log lies in memory and is made anew.
  if (length > 4 && strcmp(path + length - 4, "-shm") == 0) return 0;
  return strncmp(path, under, strlen(under)) == 0;
}

static int hits(int64_t one_in) {
  static uint64_t seed;
  if (one_in <= 0) return 0;
  if (!seed) seed = (uint64_t)getpid() * 2654435761u + (uint64_t)time(NULL);
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((seed >> 33) % (uint64_t)one_in) == 0;
}

// --- what is not synced yet --------------------------------------------------------------------------------

static int undo_file(ino_t inode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%llu", undo, (unsigned long long)inode);
  return open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

// Keeps what these bytes replace. The lock is held.
static void keep(int fd, const struct stat *file, off_t offset, size_t length) {
  COUNT(writes);
  if (!undo) return;
  off_t end = offset + (off_t)length;
  if (end > file->st_size) end = file->st_size;
  size_t old = end > offset ? (size_t)(end - offset) : 0;
  int64_t *record = malloc(4 * sizeof *record + old);
  int kept = undo_file(file->st_ino);
  if (!record || kept < 0) abort();
  record[0] = offset, record[1] = (int64_t)length, record[2] = file->st_size, record[3] = (int64_t)old;
  for (size_t got = 0; got < old;) {
    long n = syscall(SYS_pread64, fd, (char *)(record + 4) + got, old - got, offset + (off_t)got);
    if (n <= 0) {
      // Opened for writing only.
      char name[32];
      snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
      int readable = open(name, O_RDONLY | O_CLOEXEC);
      n = syscall(SYS_pread64, readable, (char *)(record + 4) + got, old - got, offset + (off_t)got);
      close(readable);
      if (n <= 0) abort();
    }
    got += (size_t)n;
  }
  size_t all = 4 * sizeof *record + old;
  if (syscall(SYS_write, kept, record, all) != (long)all) abort();
  close(kept);
  free(record);
}

static void is_synced(ino_t inode) {
  for (int n = 0; n < failed_count; n++)
    if (failed[n] == inode) return;
  if (!undo) return;
  int kept = undo_file(inode);
  if (kept < 0 || syscall(SYS_ftruncate, kept, 0) != 0) abort();
  close(kept);
}

static void forget(const char *path) {
  struct stat file;
  char kept[4096];
  if (!undo || lstat(path, &file) != 0 || !S_ISREG(file.st_mode) || file.st_nlink != 1) return;
  snprintf(kept, sizeof kept, "%s/%llu", undo, (unsigned long long)file.st_ino);
  syscall(SYS_unlink, kept);
}

// --- writes ------------------------------------------------------------------------------------------------

// How much of a write may be done, or -1 with errno. The lock is held.
static ssize_t may_write(const struct stat *file, off_t offset, size_t length) {
  if (control->write_errno && hits(control->write_one_in)) {
    COUNT(failed_writes);
    errno = (int)control->write_errno;
    return -1;
  }
  if (!control->is_bounded) return (ssize_t)length;
  int64_t growth = offset + (int64_t)length - file->st_size;
  if (growth <= 0) return (ssize_t)length;
  int64_t room = control->room;
  if (growth <= room) {
    __atomic_sub_fetch(&control->room, growth, __ATOMIC_RELAXED);
    return (ssize_t)length;
  }
  COUNT(without_room);
  // As a real disk: what there is room for is written.
  int64_t possible = (int64_t)length - growth + (room > 0 ? room : 0);
  if (possible <= 0) {
    errno = ENOSPC;
    return -1;
  }
  if (room > 0) __atomic_sub_fetch(&control->room, room, __ATOMIC_RELAXED);
  return (ssize_t)possible;
}

static off_t place(int fd, const struct stat *file) {
  int flags = fcntl(fd, F_GETFL);
  return flags & O_APPEND ? file->st_size : lseek(fd, 0, SEEK_CUR);
}

static ssize_t write_at(int fd, const void *bytes, size_t length, off_t offset, int is_placed) {
  struct stat file;
  pthread_mutex_lock(&one_at_a_time);
  if (!is_ours(fd, &file)) {
    pthread_mutex_unlock(&one_at_a_time);
    return is_placed ? syscall(SYS_pwrite64, fd, bytes, length, offset) : syscall(SYS_write, fd, bytes, length);
  }
  off_t at = is_placed ? offset : place(fd, &file);
  ssize_t done = may_write(&file, at, length);
  if (done > 0) {
    keep(fd, &file, at, (size_t)done);
    done = is_placed ? syscall(SYS_pwrite64, fd, bytes, done, offset) : syscall(SYS_write, fd, bytes, done);
  }
  int why = errno;
  pthread_mutex_unlock(&one_at_a_time);
  errno = why;
  return done;
}

ssize_t write(int fd, const void *bytes, size_t length) {
  struct stat file;
  // Most are sockets, and may wait.
  if (!is_ours(fd, &file)) return syscall(SYS_write, fd, bytes, length);
  return write_at(fd, bytes, length, 0, 0);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return write_at(fd, bytes, length, offset, 1); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) { return write_at(fd, bytes, length, offset, 1); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
  struct stat file;
  if (!is_ours(fd, &file)) return syscall(SYS_writev, fd, parts, count);
  ssize_t all = 0;
  for (int n = 0; n < count; n++) {
    ssize_t done = write_at(fd, parts[n].iov_base, parts[n].iov_len, 0, 0);
    if (done < 0) return all ? all : done;
    all += done;
    if ((size_t)done < parts[n].iov_len) break;
  }
  return all;
}

static int set_length(int fd, off_t length) {
  struct stat file;
  pthread_mutex_lock(&one_at_a_time);
  int is_known = is_ours(fd, &file);
  if (is_known && length < file.st_size) {
    keep(fd, &file, length, (size_t)(file.st_size - length));
    if (control->is_bounded) __atomic_add_fetch(&control->room, file.st_size - length, __ATOMIC_RELAXED);
  } else if (is_known) {
    keep(fd, &file, file.st_size, (size_t)(length - file.st_size));
  }
  int done = (int)syscall(SYS_ftruncate, fd, length);
  int why = errno;
  pthread_mutex_unlock(&one_at_a_time);
  errno = why;
  return done;
}

int ftruncate(int fd, off_t length) { return set_length(fd, length); }
int ftruncate64(int fd, off64_t length) { return set_length(fd, length); }

static int make_room(int fd, off_t offset, off_t length) {
  struct stat file;
  if (is_ours(fd, &file) && control->is_bounded) {
    int64_t growth = offset + length - file.st_size;
    if (growth > control->room) {
      COUNT(without_room);
      return ENOSPC;
    }
    if (growth > 0) __atomic_sub_fetch(&control->room, growth, __ATOMIC_RELAXED);
  }
  return syscall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
}

int posix_fallocate(int fd, off_t offset, off_t length) { return make_room(fd, offset, length); }
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return make_room(fd, offset, length); }

// --- reads -------------------------------------------------------------------------------------------------

static ssize_t read_at(int fd, void *bytes, size_t length, off_t offset) {
  struct stat file;
  if (control->read_errno && is_ours(fd, &file) && hits(control->read_one_in)) {
    COUNT(failed_reads);
    errno = (int)control->read_errno;
    return -1;
  }
  return syscall(SYS_pread64, fd, bytes, length, offset);
}

ssize_t pread(int fd, void *bytes, size_t length, off_t offset) { return read_at(fd, bytes, length, offset); }
ssize_t pread64(int fd, void *bytes, size_t length, off64_t offset) { return read_at(fd, bytes, length, offset); }

// --- syncs and names ---------------------------------------------------------------------------------------

static int sync_by(long call, int fd) {
  struct stat file;
  // Other threads may write meanwhile.
  if (control->slow_us && is_ours(fd, &file) && hits(control->slow_one_in)) {
    COUNT(slow_syncs);
    struct timespec left = {control->slow_us / 1000000, control->slow_us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
  }
  pthread_mutex_lock(&one_at_a_time);
  int done = 0, why = 0;
  if (!is_ours(fd, &file)) {
    done = (int)syscall(call, fd), why = errno;
  } else if (control->sync_errno && hits(control->sync_one_in)) {
    COUNT(failed_syncs);
    if (failed_count < 16) failed[failed_count++] = file.st_ino;
    done = -1, why = (int)control->sync_errno;
  } else if (control->lies) {
    COUNT(lied_syncs);
  } else {
    done = (int)syscall(call, fd), why = errno;
    if (done == 0) COUNT(syncs), is_synced(file.st_ino);
  }
  pthread_mutex_unlock(&one_at_a_time);
  if (done != 0) errno = why;
  return done;
}

int fsync(int fd) { return sync_by(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_by(SYS_fdatasync, fd); }

int unlink(const char *path) {
  struct stat file;
  pthread_mutex_lock(&one_at_a_time);
  int is_known = under && strncmp(path, under, strlen(under)) == 0 && lstat(path, &file) == 0;
  forget(path);
  int done = (int)syscall(SYS_unlink, path), why = errno;
  if (done == 0 && is_known && control->is_bounded) __atomic_add_fetch(&control->room, file.st_size, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&one_at_a_time);
  errno = why;
  return done;
}

int rename(const char *from, const char *to) {
  pthread_mutex_lock(&one_at_a_time);
  forget(to);
  int done = (int)syscall(SYS_rename, from, to), why = errno;
  pthread_mutex_unlock(&one_at_a_time);
  errno = why;
  return done;
}

// --- clocks ------------------------------------------------------------------------------------------------

static void add(struct timespec *now, int64_t ahead_ns) {
  int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + ahead_ns;
  now->tv_sec = (time_t)(ns / 1000000000), now->tv_nsec = (long)(ns % 1000000000);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int done = NEXT(clock_gettime)(clock, now);
  if (done != 0) return done;
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) add(now, control->wall_ns);
  if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE) add(now, control->passed_ns);
  return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
  now->tv_sec = precise.tv_sec, now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}
