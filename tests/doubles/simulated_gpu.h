/* A simulated GPU: one file that the doubles of NVML and of libtr's GPU build map, and nobody else knows.
 *
 * The file (made by simulated_gpu.py; its path is in DOUBLE_GPU) holds a head and a table: which process holds how many bytes.
 * A process that is dead, or a zombie, holds nothing: as on a real GPU, its memory comes back without its help. A
 * flock of the file guards each call, which the kernel lets go of when its holder is killed; a mutex guards it from the
 * other threads of a process, which share the lock.
 */
#ifndef SIMULATED_GPU_H
#define SIMULATED_GPU_H

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define GPU_ENTRIES 256

enum gpu_mode { GPU_HIDES = 1, GPU_HOST_IDS = 2, GPU_DIVIDED = 4, GPU_FAILS = 8, GPU_NO_SIZES = 16 };

struct gpu_entry {
    uint64_t pid, began, bytes;
};

struct gpu {
    uint64_t total, foreign, mode, refused;
    struct gpu_entry entries[GPU_ENTRIES];
};

static int gpu_file = -1;
static pid_t gpu_opener;
static pthread_mutex_t gpu_guard = PTHREAD_MUTEX_INITIALIZER;

static void gpu_lock(void) {
    pthread_mutex_lock(&gpu_guard);
    flock(gpu_file, LOCK_EX);
}

static void gpu_unlock(void) {
    flock(gpu_file, LOCK_UN);
    pthread_mutex_unlock(&gpu_guard);
}

/* A lock belongs to an open file, which a child shares with its parent: so each process opens its own. */
static struct gpu *gpu_map(void) {
    static struct gpu *gpu;
    const char *path = getenv("DOUBLE_GPU");
    if (!path || (gpu && gpu_opener == getpid())) return gpu;
    gpu_file = open(path, O_RDWR | O_CLOEXEC);
    void *found = gpu_file < 0 ? MAP_FAILED : mmap(NULL, sizeof *gpu, PROT_READ | PROT_WRITE, MAP_SHARED, gpu_file, 0);
    gpu = found == MAP_FAILED ? NULL : found;
    gpu_opener = getpid();
    return gpu;
}

/* When the process began, in ticks since the boot: an id may be used again. 0 when it is dead or a zombie. */
static uint64_t gpu_began(uint64_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    char state, *rest = strrchr(text, ')');
    unsigned long long began;
    const char *format = ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
    if (!rest || sscanf(rest, format, &state, &began) != 2 || state == 'Z' || state == 'X') return 0;
    return began;
}

/* Call it with the lock. What all hold, after the dead have given theirs back. */
static uint64_t gpu_used(struct gpu *gpu) {
    uint64_t used = gpu->foreign;
    for (int i = 0; i < GPU_ENTRIES; i++) {
        struct gpu_entry *entry = &gpu->entries[i];
        if (entry->pid && gpu_began(entry->pid) != entry->began) memset(entry, 0, sizeof *entry);
        used += entry->bytes;
    }
    return used;
}

static struct gpu_entry *gpu_own(struct gpu *gpu) {
    struct gpu_entry *vacant = NULL;
    for (int i = 0; i < GPU_ENTRIES; i++) {
        if (gpu->entries[i].pid == (uint64_t)getpid()) return &gpu->entries[i];
        if (!vacant && !gpu->entries[i].pid) vacant = &gpu->entries[i];
    }
    if (vacant) *vacant = (struct gpu_entry){(uint64_t)getpid(), gpu_began((uint64_t)getpid()), 0};
    return vacant;
}

/* Take (or give back) bytes of the GPU; 0 when it is full. Without a GPU there is always room. */
static inline int gpu_take(int64_t bytes) {
    struct gpu *gpu = gpu_map();
    if (!gpu) return 1;
    gpu_lock();
    struct gpu_entry *own = NULL;
    int fits = bytes <= 0 || gpu_used(gpu) + (uint64_t)bytes <= gpu->total;
    if (fits && (own = gpu_own(gpu))) own->bytes += (uint64_t)bytes;
    gpu->refused += !fits;
    gpu_unlock();
    return fits && own;
}

#endif
