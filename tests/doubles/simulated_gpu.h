/* A simulated card: one file that the doubles of NVML and of libtr's GPU build map, and nobody else knows.
 *
 * The file (made by simulated_gpu.py; its path is in DOUBLE_CARD) holds a head and a table: which process holds how many bytes.
 * A process that is dead, or a zombie, holds nothing: as on a real card, its memory comes back without its help. A
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

#define CARD_ENTRIES 256

enum card_mode { SIMULATED_GPU_HIDES = 1, CARD_HOST_IDS = 2, CARD_DIVIDED = 4, CARD_FAILS = 8, CARD_NO_SIZES = 16 };

struct card_entry {
    uint64_t pid, began, bytes;
};

struct card {
    uint64_t total, foreign, mode, refused;
    struct card_entry entries[CARD_ENTRIES];
};

static int card_file = -1;
static pid_t card_opener;
static pthread_mutex_t card_guard = PTHREAD_MUTEX_INITIALIZER;

static void card_lock(void) {
    pthread_mutex_lock(&card_guard);
    flock(card_file, LOCK_EX);
}

static void card_unlock(void) {
    flock(card_file, LOCK_UN);
    pthread_mutex_unlock(&card_guard);
}

/* A lock belongs to an open file, which a child shares with its parent: so each process opens its own. */
static struct card *card_map(void) {
    static struct card *card;
    const char *path = getenv("DOUBLE_CARD");
    if (!path || (card && card_opener == getpid())) return card;
    card_file = open(path, O_RDWR | O_CLOEXEC);
    void *found = card_file < 0 ? MAP_FAILED : mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED, card_file, 0);
    card = found == MAP_FAILED ? NULL : found;
    card_opener = getpid();
    return card;
}

/* When the process began, in ticks since the boot: an id may be used again. 0 when it is dead or a zombie. */
static uint64_t card_began(uint64_t pid) {
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
static uint64_t card_used(struct card *card) {
    uint64_t used = card->foreign;
    for (int i = 0; i < CARD_ENTRIES; i++) {
        struct card_entry *entry = &card->entries[i];
        if (entry->pid && card_began(entry->pid) != entry->began) memset(entry, 0, sizeof *entry);
        used += entry->bytes;
    }
    return used;
}

static struct card_entry *card_own(struct card *card) {
    struct card_entry *vacant = NULL;
    for (int i = 0; i < CARD_ENTRIES; i++) {
        if (card->entries[i].pid == (uint64_t)getpid()) return &card->entries[i];
        if (!vacant && !card->entries[i].pid) vacant = &card->entries[i];
    }
    if (vacant) *vacant = (struct card_entry){(uint64_t)getpid(), card_began((uint64_t)getpid()), 0};
    return vacant;
}

/* Take (or give back) bytes of the card; 0 when it is full. Without a card there is always room. */
static inline int card_take(int64_t bytes) {
    struct card *card = card_map();
    if (!card) return 1;
    card_lock();
    struct card_entry *own = NULL;
    int fits = bytes <= 0 || card_used(card) + (uint64_t)bytes <= card->total;
    if (fits && (own = card_own(card))) own->bytes += (uint64_t)bytes;
    card->refused += !fits;
    card_unlock();
    return fits && own;
}

#endif
