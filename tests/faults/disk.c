/* A failing disk, for tests: preloaded into the service, it lets system calls
 * on the journal's files fail, wait or be slow, as a control file says.
 *
 * DISK_FAULTS names the control file. It has one rule or none:
 *
 *     CALL ERRNO [N]      the call fails; with N, only the N-th one does
 *     CALL short [N]      the call writes one byte
 *     CALL hold           the call waits until the rule is gone
 *
 * CALL is pwrite, fdatasync, fsync, fallocate or ftruncate. The N-th call is
 * counted from the moment that the rule was first seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum verdict { PASS, FAIL, SHORT };

static atomic_long counted;
static char counted_rule[64];
static atomic_flag busy = ATOMIC_FLAG_INIT;

static int is_journal(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, "/journal") != NULL;
}

static int read_rule(char *rule, size_t size) {
    const char *file = getenv("DISK_FAULTS");
    if (!file) return 0;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, rule, size - 1);
    close(fd);
    if (length <= 0) return 0;
    rule[length] = 0;
    return 1;
}

static int number_of(const char *name) {
    if (!strcmp(name, "ENOSPC")) return ENOSPC;
    if (!strcmp(name, "EDQUOT")) return EDQUOT;
    if (!strcmp(name, "EINTR")) return EINTR;
    return EIO;
}

static enum verdict judge(const char *call, int fd) {
    char rule[64], name[16], what[16];
    long nth = 0;
    for (;;) {
        if (!read_rule(rule, sizeof rule)) return PASS;
        int parts = sscanf(rule, "%15s %15s %ld", name, what, &nth);
        if (parts < 2 || strcmp(name, call) || !is_journal(fd)) return PASS;
        if (strcmp(what, "hold")) {
            if (parts < 3) nth = 0;
            break;
        }
        usleep(2000);
    }
    if (nth) {
        while (atomic_flag_test_and_set(&busy)) {}
        if (strcmp(counted_rule, rule)) {
            strcpy(counted_rule, rule);
            atomic_store(&counted, 0);
        }
        long now = atomic_fetch_add(&counted, 1) + 1;
        atomic_flag_clear(&busy);
        if (now != nth) return PASS;
    }
    if (!strcmp(what, "short")) return SHORT;
    errno = number_of(what);
    return FAIL;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    switch (judge("pwrite", fd)) {
    case FAIL: return -1;
    case SHORT: return REAL(pwrite64)(fd, bytes, count ? 1 : 0, at);
    default: return REAL(pwrite64)(fd, bytes, count, at);
    }
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return pwrite64(fd, bytes, count, at);
}

int fdatasync(int fd) {
    return judge("fdatasync", fd) == FAIL ? -1 : REAL(fdatasync)(fd);
}

int fsync(int fd) {
    return judge("fsync", fd) == FAIL ? -1 : REAL(fsync)(fd);
}

int fallocate64(int fd, int mode, off64_t at, off64_t length) {
    return judge("fallocate", fd) == FAIL ? -1 : REAL(fallocate64)(fd, mode, at, length);
}

int fallocate(int fd, int mode, off_t at, off_t length) {
    return fallocate64(fd, mode, at, length);
}

int ftruncate64(int fd, off64_t length) {
    return judge("ftruncate", fd) == FAIL ? -1 : REAL(ftruncate64)(fd, length);
}

int ftruncate(int fd, off_t length) {
    return ftruncate64(fd, length);
}
