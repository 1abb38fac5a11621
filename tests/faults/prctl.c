/* A kernel that lets nobody adopt orphans, for tests: preloaded into the service, it
 * refuses to make it a subreaper.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/prctl.h>

int prctl(int option, ...) {
    static int (*real)(int, ...);
    if (!real) real = (int (*)(int, ...))dlsym(RTLD_NEXT, "prctl");
    if (option == PR_SET_CHILD_SUBREAPER) {
        errno = EINVAL;
        return -1;
    }
    va_list args;
    va_start(args, option);
    unsigned long a = va_arg(args, unsigned long), b = va_arg(args, unsigned long);
    unsigned long c = va_arg(args, unsigned long), d = va_arg(args, unsigned long);
    va_end(args);
    return real(option, a, b, c, d);
}
