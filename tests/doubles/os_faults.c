/* Refuses system calls by name while a control file says so; loaded with LD_PRELOAD by os_faults.py, which says what for.

   The control file is mapped by every process, so that a fault begins and ends in all of them at once. Each call here
   first looks at it, and otherwise is the C library's own. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The order of os_faults.py's CALLS. */
enum { FORK, OPEN, EPOLL, MEMFD, ACCEPT, WRITE, THREAD, PIPE, SOCKET, CALLS };

struct control {
    int32_t refused[16]; /* errno by call; 0 lets it pass */
    int64_t process;     /* only this one; -N is all but N; 0 is all */
    int64_t clock_s;     /* added to the wall clock */
    int64_t delay_ms;    /* before open, write and fsync of files under `path` */
    char path[256];      /* only names that contain this are refused to be opened; empty is all */
};

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("FAULTS_CONTROL");
    if (name == NULL)
        return;
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int file = real(name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        control = mapped;
}

static int is_meant(void) {
    int64_t process = control->process;
    return process == 0 || (process > 0 ? getpid() == process : getpid() != -process);
}

static int is_refused(int call) {
    if (control == NULL || control->refused[call] == 0 || !is_meant())
        return 0;
    errno = control->refused[call];
    return 1;
}

static int is_named(const char *name) { return strstr(name, control->path) != NULL; }

static void wait_for_disk(void) {
    if (control == NULL || control->delay_ms == 0 || !is_meant())
        return;
    struct timespec time = {control->delay_ms / 1000, control->delay_ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static int is_file(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

#define REAL(name)                                                                                                     \
    static __typeof__(&name) real;                                                                                     \
    if (real == NULL)                                                                                                  \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

pid_t fork(void) {
    REAL(fork);
    return is_refused(FORK) ? -1 : real();
}

int epoll_create1(int flags) {
    REAL(epoll_create1);
    return is_refused(EPOLL) ? -1 : real(flags);
}

int memfd_create(const char *name, unsigned int flags) {
    REAL(memfd_create);
    return is_refused(MEMFD) ? -1 : real(name, flags);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    REAL(accept4);
    return is_refused(ACCEPT) ? -1 : real(fd, address, length, flags);
}

int pipe2(int fds[2], int flags) {
    REAL(pipe2);
    return is_refused(PIPE) ? -1 : real(fds, flags);
}

int socket(int domain, int type, int protocol) {
    REAL(socket);
    return is_refused(SOCKET) ? -1 : real(domain, type, protocol);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *argument) {
    REAL(pthread_create);
    if (is_refused(THREAD))
        return errno;
    return real(thread, how, run, argument);
}

/* Only what is written to files: sockets and pipes have no disk that could be full. */
ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (control != NULL && (control->refused[WRITE] || control->delay_ms) && is_file(fd)) {
        wait_for_disk();
        if (is_refused(WRITE))
            return -1;
    }
    return real(fd, data, size);
}

int fsync(int fd) {
    REAL(fsync);
    wait_for_disk();
    return real(fd);
}

static int opens(const char *name) {
    if (control == NULL || (control->refused[OPEN] == 0 && control->delay_ms == 0) || !is_named(name))
        return 0;
    wait_for_disk();
    return is_refused(OPEN);
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN_LIKE(call)                                                                                                \
    int call(const char *name, int flags, ...) {                                                                       \
        REAL(call);                                                                                                    \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = mode_of(flags, rest);                                                                            \
        va_end(rest);                                                                                                  \
        return opens(name) ? -1 : real(name, flags, mode);                                                             \
    }

#define OPENAT_LIKE(call)                                                                                              \
    int call(int folder, const char *name, int flags, ...) {                                                           \
        REAL(call);                                                                                                    \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = mode_of(flags, rest);                                                                            \
        va_end(rest);                                                                                                  \
        return opens(name) ? -1 : real(folder, name, flags, mode);                                                     \
    }

OPEN_LIKE(open)
OPEN_LIKE(open64)
OPENAT_LIKE(openat)
OPENAT_LIKE(openat64)

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int done = real(clock, now);
    if (done == 0 && control != NULL && clock == CLOCK_REALTIME)
        now->tv_sec += control->clock_s;
    return done;
}

time_t time(time_t *where) {
    REAL(time);
    time_t now = real(NULL) + (control == NULL ? 0 : control->clock_s);
    if (where != NULL)
        *where = now;
    return now;
}

int gettimeofday(struct timeval *now, void *zone) {
    REAL(gettimeofday);
    int done = real(now, zone);
    if (done == 0 && control != NULL)
        now->tv_sec += control->clock_s;
    return done;
}
