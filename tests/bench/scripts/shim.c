/* LD_PRELOAD: opening and reading files below SHIM_FOLDER takes SHIM_MS longer on rank SHIM_RANK ("all": on all), or,
   from the SHIM_AFTER-th opening in this process on, fails with EIO where SHIM_FAIL is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static unsigned char ours[65536]; /* file descriptors below the folder */
static int opened;

static int chosen(void) {
    const char *wanted = getenv("SHIM_RANK"), *rank = getenv("RANK");
    if (wanted == NULL) return 0;
    if (strcmp(wanted, "all") == 0) return 1;
    if (rank == NULL) rank = getenv("LOCAL_RANK");
    return strcmp(wanted, rank == NULL ? "0" : rank) == 0;
}

static int below(const char *path) {
    const char *folder = getenv("SHIM_FOLDER");
    return folder != NULL && path != NULL && strstr(path, folder) != NULL && chosen();
}

static void wait_ms(void) {
    const char *text = getenv("SHIM_MS");
    long ms = text == NULL ? 0 : atol(text);
    struct timespec time = {ms / 1000, (ms % 1000) * 1000000};
    if (ms > 0) nanosleep(&time, NULL);
}

/* 1 where the opening is to fail. */
static int opening(const char *path) {
    if (!below(path)) return 0;
    const char *after = getenv("SHIM_AFTER");
    if (__sync_add_and_fetch(&opened, 1) <= (after == NULL ? 0 : atoi(after))) return 0;
    if (getenv("SHIM_FAIL") != NULL) {
        errno = EIO;
        return 1;
    }
    wait_ms();
    return 0;
}

static int mark(int fd, const char *path) {
    if (fd >= 0 && fd < (int)sizeof ours) ours[fd] = getenv("SHIM_READS") != NULL && below(path);
    return fd;
}

#define OPEN(name)                                                          \
    int name(const char *path, int flags, ...) {                            \
        static int (*real)(const char *, int, ...);                         \
        if (real == NULL) real = dlsym(RTLD_NEXT, #name);                   \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        if (opening(path)) return -1;                                       \
        return mark(real(path, flags, mode), path);                         \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                        \
    int name(int at, const char *path, int flags, ...) {                    \
        static int (*real)(int, const char *, int, ...);                    \
        if (real == NULL) real = dlsym(RTLD_NEXT, #name);                   \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        if (opening(path)) return -1;                                       \
        return mark(real(at, path, flags, mode), path);                     \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int fd, void *to, size_t bytes) {
    static ssize_t (*real)(int, void *, size_t);
    if (real == NULL) real = dlsym(RTLD_NEXT, "read");
    if (fd >= 0 && fd < (int)sizeof ours && ours[fd]) wait_ms();
    return real(fd, to, bytes);
}

int close(int fd) {
    static int (*real)(int);
    if (real == NULL) real = dlsym(RTLD_NEXT, "close");
    if (fd >= 0 && fd < (int)sizeof ours) ours[fd] = 0;
    return real(fd);
}
