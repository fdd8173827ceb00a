/* Loaded into a process by LD_PRELOAD. It reads what to spoil from the file PRELOAD_FOLDER/PID, which the fault run
   writes (src/preload.rs), and counts there how often the process met it. Children that are forked share the file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The order is that of `Spoiled` in src/preload.rs. */
enum { CLOCK, FILES, FLUSHES, SPACE, MEMORY, KINDS };
struct spoiled {
  int64_t value;
  int64_t met;
};
static volatile struct spoiled *spoiled;

/* The function of the C library that one of this file hides. */
#define HIDDEN(name)                                     \
  static __typeof__(&name) hidden;                       \
  if (!hidden) hidden = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
  char path[4096];
  const char *folder = getenv("PRELOAD_FOLDER");
  if (!folder) return;
  snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || ftruncate(file, KINDS * sizeof *spoiled) != 0) abort();
  void *mapped = mmap(NULL, KINDS * sizeof *spoiled, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) abort();
  close(file);
  spoiled = mapped;
}

static int64_t value(int kind) { return spoiled ? spoiled[kind].value : 0; }
static void meet(int kind) { __atomic_fetch_add(&spoiled[kind].met, 1, __ATOMIC_RELAXED); }

/* The wall clock is ahead by so many seconds. */
int clock_gettime(clockid_t clock, struct timespec *time) {
  HIDDEN(clock_gettime);
  int status = hidden(clock, time);
  int64_t step = value(CLOCK);
  if (status == 0 && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    time->tv_sec += step;
    meet(CLOCK);
  }
  return status;
}

/* The limit of open files is the kernel's; this only counts what it refuses. */
static int opened(int file) {
  if (file < 0 && errno == EMFILE && value(FILES)) {
    meet(FILES);
    errno = EMFILE;
  }
  return file;
}
int socket(int domain, int type, int protocol) {
  HIDDEN(socket);
  return opened(hidden(domain, type, protocol));
}
int accept4(int file, struct sockaddr *address, socklen_t *length, int flags) {
  HIDDEN(accept4);
  return opened(hidden(file, address, length, flags));
}

/* The process gets no memory by malloc (its calloc and realloc go on), which ends a program in Rust. The second name of
   the hidden function is used, because a search for the first one could itself ask for memory. */
extern void *__libc_malloc(size_t size);
void *malloc(size_t size) {
  if (!value(MEMORY)) return __libc_malloc(size);
  meet(MEMORY);
  errno = ENOMEM;
  return NULL;
}

/* A flush takes so many milliseconds, or until the fault ends. */
static void flush_slowly(void) {
  if (value(FLUSHES) <= 0) return;
  meet(FLUSHES);
  const struct timespec pause = {.tv_nsec = 5000000};
  for (int64_t slept = 0; slept < value(FLUSHES); slept += 5) nanosleep(&pause, NULL);
}
int fdatasync(int file) {
  HIDDEN(fdatasync);
  flush_slowly();
  return hidden(file);
}
int fsync(int file) {
  HIDDEN(fsync);
  flush_slowly();
  return hidden(file);
}

/* No file grows: what is written beyond its end fails, and what it has already can be overwritten. */
static int is_full(int file, off_t end) {
  struct stat known;
  if (!value(SPACE) || fstat(file, &known) != 0 || !S_ISREG(known.st_mode) || end <= known.st_size) return 0;
  meet(SPACE);
  return 1;
}
ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) {
  HIDDEN(pwrite);
  if (!is_full(file, at + (off_t)count)) return hidden(file, bytes, count, at);
  errno = ENOSPC;
  return -1;
}
ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
  HIDDEN(pwritev);
  off_t end = at;
  for (int part = 0; part < count; part++) end += (off_t)parts[part].iov_len;
  if (!is_full(file, end)) return hidden(file, parts, count, at);
  errno = ENOSPC;
  return -1;
}
int posix_fallocate(int file, off_t at, off_t length) {
  HIDDEN(posix_fallocate);
  return is_full(file, at + length) ? ENOSPC : hidden(file, at, length);
}
