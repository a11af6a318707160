/* Preloaded into processes: syncs of files below the folder that the file $FAIL_SYNC names fail with EIO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
  const char *flag = getenv("FAIL_SYNC");
  FILE *file = flag ? fopen(flag, "r") : NULL;
  if (!file) return 0;
  char folder[PATH_MAX] = "", link[64], path[PATH_MAX];
  char *found = fgets(folder, sizeof folder, file);
  fclose(file);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (!found || length < 0) return 0;
  path[length] = 0;
  return strncmp(path, folder, strlen(folder)) == 0;
}

static int sync_by(const char *name, int fd) {
  if (fails(fd)) {
    errno = EIO;
    return -1;
  }
  return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}

int fsync(int fd) { return sync_by("fsync", fd); }
int fdatasync(int fd) { return sync_by("fdatasync", fd); }
