/* A file system that hangs, for tests: preloaded into the service, it lets calls
 * wait that look at certain paths.
 *
 * MOUNT_FAULTS names the control file. It has a part of a path, or nothing; what
 * looks at a path with this part waits until the file says something else.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int hangs(const char *path) {
    const char *file = getenv("MOUNT_FAULTS");
    if (!file || !path) return 0;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char part[256];
    ssize_t length = read(fd, part, sizeof part - 1);
    close(fd);
    if (length <= 0) return 0;
    part[length] = 0;
    return strstr(path, part) != NULL;
}

static void look(const char *path) {
    while (hangs(path)) usleep(2000);
}

DIR *opendir(const char *path) {
    static DIR *(*real)(const char *);
    if (!real) real = (DIR *(*)(const char *))dlsym(RTLD_NEXT, "opendir");
    look(path);
    return real(path);
}

int statx(int dir, const char *path, int flags, unsigned mask, struct statx *into) {
    static int (*real)(int, const char *, int, unsigned, struct statx *);
    if (!real) real = (int (*)(int, const char *, int, unsigned, struct statx *))dlsym(RTLD_NEXT, "statx");
    look(path);
    return real(dir, path, flags, mask, into);
}
