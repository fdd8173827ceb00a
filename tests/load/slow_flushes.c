/* tests/load/compare --slow-flushes: each flush takes MILLISECONDS longer, as on a volume of a cloud. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int flush(const char *name, int file) {
  int (*hidden)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
  const struct timespec longer = {.tv_sec = MILLISECONDS / 1000, .tv_nsec = MILLISECONDS % 1000 * 1000000L};
  nanosleep(&longer, NULL);
  return hidden(file);
}
int fdatasync(int file) { return flush("fdatasync", file); }
int fsync(int file) { return flush("fsync", file); }
