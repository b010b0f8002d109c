/* A double of Tr 2.3's libtr.so: the same ABI, no model, every argument checked, every answer known.
 *
 * tr_run on a W x H image of which every 17th byte, from the first, has the Adler-32 sum S gives two lines, tr_recognize the first of them:
 *     "WxH:S"            each character on two steps, a blank after each; probabilities 0.9
 *     "\u4f60\u597dAA\u4e16\u754c"   each character on one to three steps, a blank between the two A; probability 0.8
 * Line 1 has the rect (W/2, H/4, W/2, H/8, 0), line 2 (W/2, H*3/4, W/2, H/8, 10 if flag 2 else 0).
 * Blank steps have probability 0.1. Whatever lies behind the last step of a line, and in the two rows below, is filled
 * with the letter '#', so that a caller who reads too far is seen.
 *
 * A wrong call is a complaint: counted, kept as text, and answered with the one line "garbage". Read them with
 * double_complaints() and double_last_complaint(); double_reset() forgets them. tr_init also complains about itself.
 *
 * The environment, read at each call:
 *     LIBTR_DOUBLE_SLEEP_MS     time that a run takes (what its own work leaves of it, asleep)
 *     LIBTR_DOUBLE_LEAK_BYTES   memory that each run touches and never frees
 *     LIBTR_DOUBLE_ABORT_EVERY  abort() at each n-th run of the process
 *     LIBTR_DOUBLE_NONSENSE     negative, huge (line count), steps (step count), nan (rect), unicode, surrogate
 *     LIBTR_DOUBLE_FILL         1: as many lines and steps as there is room for, all 'A' 'B' 'A' 'B' ...
 *     LIBTR_DOUBLE_SHARED       1: several threads may run one session at once
 * and in its GPU build (-DGPU_BUILD), over the simulated GPU of simulated_gpu.h:
 *     LIBTR_DOUBLE_GPU_BYTES        memory of the GPU that each session holds; one that finds no room never runs
 *     LIBTR_DOUBLE_GPU_LEAK_BYTES   memory of the GPU that each run takes and never gives back; without room it fails
 */
#define _GNU_SOURCE

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "simulated_gpu.h"

#define SESSIONS 256
#define RECT 6
#define BLANK (-1)
#define STEP 17

enum kind { CLOSED = 0, CTPN = 1, CRNN = 2 };

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static enum kind sessions[SESSIONS];
static int without_room[SESSIONS];
static int busy[SESSIONS];
static int opening;
static long runs;
static int complaints;
static char last_complaint[256];

int double_complaints(void) { return complaints; }
const char *double_last_complaint(void) { return last_complaint; }

int double_open_sessions(void) {
    int open = 0;
    for (int id = 0; id < SESSIONS; id++) open += sessions[id] != CLOSED;
    return open;
}

void double_reset(void) {
    pthread_mutex_lock(&guard);
    complaints = 0;
    last_complaint[0] = 0;
    pthread_mutex_unlock(&guard);
}

#ifdef GPU_BUILD
/* How a GPU build is known. */
const char *const double_needs = "libcudart.so.12";
static int take_from_gpu(long bytes) { return gpu_take(bytes); }
#else
static int take_from_gpu(long bytes) {
    (void)bytes;
    return 1;
}
#endif

/* Call it without the guard. Always 0, for `return complain(...)`. */
static int complain(const char *what) {
    pthread_mutex_lock(&guard);
    complaints++;
    snprintf(last_complaint, sizeof last_complaint, "%s", what);
    pthread_mutex_unlock(&guard);
    return 0;
}

static long setting(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static int nonsense(const char *kind) {
    const char *text = getenv("LIBTR_DOUBLE_NONSENSE");
    return text && !strcmp(text, kind);
}

static void sleep_ms(long ms) {
    struct timespec span = {ms / 1000, (ms % 1000) * 1000000};
    if (ms > 0) nanosleep(&span, NULL);
}

static struct timespec now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time;
}

/* So that a run takes the asked time in all, with what the double itself does in it. */
static void sleep_until(struct timespec began, long ms) {
    began.tv_nsec += ms % 1000 * 1000000;
    began.tv_sec += ms / 1000 + began.tv_nsec / 1000000000;
    began.tv_nsec %= 1000000000;
    if (ms > 0)
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &began, NULL)) continue;
}

/* ---- sessions ---- */

static enum kind read_kind(const char *path) {
    char magic[4] = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return CLOSED;
    size_t got = fread(magic, 1, sizeof magic, file);
    fclose(file);
    if (got != sizeof magic) return CLOSED;
    if (!memcmp(magic, "CTPN", 4)) return CTPN;
    return memcmp(magic, "CRNN", 4) ? CLOSED : CRNN;
}

static int open_alone(int id, const char *model) {
    if (!model || strnlen(model, 4096) == 4096) return complain("tr_init: the path is not a string");
    enum kind kind = read_kind(model);
    if (kind == CLOSED) return complain("tr_init: no model at the path");
    if (sessions[id] != CLOSED) return complain("tr_init: the session is open already");
    sessions[id] = kind;
    without_room[id] = !take_from_gpu(setting("LIBTR_DOUBLE_GPU_BYTES"));
    return 1;
}

void tr_init(int process, int id, char *model, void *arg) {
    if (process != 0 || arg) complain("tr_init: process is not 0, or an extra argument");
    if (id < 0 || id >= SESSIONS) {
        complain("tr_init: session number outside the table");
        return;
    }
    if (__atomic_fetch_add(&opening, 1, __ATOMIC_SEQ_CST)) complain("tr_init: two at once");
    sleep_ms(2);
    open_alone(id, model);
    __atomic_fetch_sub(&opening, 1, __ATOMIC_SEQ_CST);
}

void tr_release(int id) {
    if (id < 0 || id >= SESSIONS || sessions[id] == CLOSED)
        complain("tr_release: the session is not open");
    else if (__atomic_load_n(&busy[id], __ATOMIC_SEQ_CST))
        complain("tr_release: the session is running");
    else {
        if (!without_room[id]) take_from_gpu(-setting("LIBTR_DOUBLE_GPU_BYTES"));
        sessions[id] = CLOSED;
    }
}

static int enter(int id, enum kind kind) {
    if (id < 0 || id >= SESSIONS || sessions[id] != kind) return complain("run: the session is not open for this");
    if (__atomic_fetch_add(&busy[id], 1, __ATOMIC_SEQ_CST) && !setting("LIBTR_DOUBLE_SHARED")) {
        __atomic_fetch_sub(&busy[id], 1, __ATOMIC_SEQ_CST);
        return complain("run: two threads in one session");
    }
    return 1;
}

static void leave(int id) { __atomic_fetch_sub(&busy[id], 1, __ATOMIC_SEQ_CST); }

/* ---- arguments ---- */

static size_t image_bytes(int height, int width, int type) { return (size_t)height * width * (type == 16 ? 3 : 1); }

static int check_image(const void *image, int height, int width, int type) {
    if (!image || height < 1 || width < 1 || height > 100000 || width > 100000) return complain("image: size");
    if (type != 0 && type != 16) return complain("image: type is neither 0 nor 16");
    return 1;
}

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

static int check_outputs(const void *image, size_t bytes, float *rects, int lines, int *codes, float *prob, int width) {
    size_t cells = (size_t)lines * width * 4, rect_bytes = (size_t)lines * RECT * 4;
    if (lines < 1 || width < 1 || lines > 4096 || width > 4096) return complain("outputs: size");
    if (!codes || !prob || ((uintptr_t)rects | (uintptr_t)codes | (uintptr_t)prob) % 4)
        return complain("outputs: NULL or not aligned");
    if (overlap(codes, cells, prob, cells) || overlap(image, bytes, codes, cells) || overlap(image, bytes, prob, cells))
        return complain("outputs: they overlap");
    if (rects && (overlap(rects, rect_bytes, codes, cells) || overlap(rects, rect_bytes, prob, cells)))
        return complain("outputs: the rects overlap the rest");
    return 1;
}

/* ---- answers ---- */

/* Of every STEP-th byte: telling pages apart must not cost a load test more than the service does. */
static uint32_t adler32(const unsigned char *bytes, size_t size) {
    uint32_t a = 1, b = 0;
    size_t count = (size + STEP - 1) / STEP;
    while (count) {
        size_t some = count < 5552 ? count : 5552; /* the most bytes for which 32 bits are enough */
        count -= some;
        for (; some; some--, bytes += STEP) b += a += *bytes;
        a %= 65521;
        b %= 65521;
    }
    return b << 16 | a;
}

struct row {
    int *codes;
    float *prob;
    int width, used;
};

static void put(struct row *row, int code, float prob, int times) {
    for (; times > 0 && row->used < row->width; times--, row->used++) {
        row->codes[row->used] = code;
        row->prob[row->used] = prob;
    }
}

static int write_plain(struct row row, const char *text) {
    for (; *text; text++) {
        put(&row, *text, 0.9f, 2);
        put(&row, BLANK, 0.1f, 1);
    }
    return row.used;
}

static int write_first(struct row row, const void *image, int height, int width, int type) {
    char text[64];
    unsigned sum = adler32(image, image_bytes(height, width, type));
    snprintf(text, sizeof text, "%dx%d:%u", width, height, sum);
    return write_plain(row, text);
}

static int write_second(struct row row) {
    put(&row, BLANK, 0.1f, 2);
    put(&row, 0x4f60, 0.8f, 3);
    put(&row, 0x597d, 0.8f, 1);
    put(&row, 'A', 0.8f, 2);
    put(&row, -7, 0.1f, 1);
    put(&row, 'A', 0.8f, 1);
    put(&row, 0x4e16, 0.8f, 1);
    put(&row, 0x754c, 0.8f, 2);
    put(&row, BLANK, 0.1f, 1);
    return row.used;
}

static void place(float *rect, float cx, float cy, float w, float h, float angle, int steps) {
    float values[RECT] = {cx, cy, w, h, angle, (float)steps};
    memcpy(rect, values, sizeof values);
}

static void misuse_memory(void) {
    long every = setting("LIBTR_DOUBLE_ABORT_EVERY"), leak = setting("LIBTR_DOUBLE_LEAK_BYTES");
    long run = __atomic_add_fetch(&runs, 1, __ATOMIC_SEQ_CST);
    if (every > 0 && run % every == 0) abort();
    if (leak > 0) {
        volatile char *lost = malloc((size_t)leak);
        for (long i = 0; lost && i < leak; i += 512) lost[i] = 1;
    }
}

static void spoil(int *codes, float *prob, size_t cells) {
    for (size_t i = 0; i < cells; i++) {
        codes[i] = '#';
        prob[i] = 1.0f;
    }
}

static int fill(float *rects, int lines, int *codes, float *prob, int width) {
    for (int line = 0; line < lines; line++) {
        place(rects + line * RECT, 10, 10, 20, 20, 0, width);
        for (int step = 0; step < width; step++) {
            codes[line * width + step] = 'A' + step % 2;
            prob[line * width + step] = 0.5f;
        }
    }
    return lines;
}

static int spoil_answer(float *rects, int lines, int *codes, int count, int width) {
    if (nonsense("negative")) return -1;
    if (nonsense("huge")) return lines + 1;
    if (nonsense("steps")) rects[5] = (float)(width + 1);
    if (nonsense("nan")) rects[0] = NAN;
    if (nonsense("unicode")) codes[0] = 0x110000;
    if (nonsense("surrogate")) codes[0] = 0xd800;
    return count;
}

/* As CUDA does when it is out of memory: the run fails, the process goes on. */
static int has_room(int id) { return !without_room[id] && take_from_gpu(setting("LIBTR_DOUBLE_GPU_LEAK_BYTES")); }

static int answer(const void *image, int h, int w, int type, int flag, float *rects, int lines, int *codes,
                  float *prob, int width) {
    misuse_memory();
    spoil(codes, prob, (size_t)(lines < 4 ? lines : 4) * width);
    if (setting("LIBTR_DOUBLE_FILL")) return fill(rects, lines, codes, prob, width);
    int steps = write_first((struct row){codes, prob, width, 0}, image, h, w, type);
    place(rects, w / 2.0f, h / 4.0f, w / 2.0f, h / 8.0f, 0, steps);
    if (lines < 2) return 1;
    steps = write_second((struct row){codes + width, prob + width, width, 0});
    place(rects + RECT, w / 2.0f, h * 0.75f, w / 2.0f, h / 8.0f, flag == 2 ? 10 : 0, steps);
    return spoil_answer(rects, lines, codes, 2, width);
}

static int garbage(float *rects, int *codes, float *prob, int width) {
    int steps = codes && prob ? write_plain((struct row){codes, prob, width, 0}, "garbage") : 0;
    if (rects) place(rects, 1, 1, 2, 2, 0, steps);
    return rects ? 1 : steps;
}

int tr_run(int ctpn, int crnn, void *image, int height, int width, int type, int flag, float *rects, int max_lines,
           int *codes, float *prob, int max_width) {
    if (!check_image(image, height, width, type) || !rects ||
        !check_outputs(image, image_bytes(height, width, type), rects, max_lines, codes, prob, max_width))
        return -2;
    if (flag != 1 && flag != 2) return complain("tr_run: flag is neither 1 nor 2");
    struct timespec began = now();
    if (!enter(ctpn, CTPN)) return garbage(rects, codes, prob, max_width);
    int count;
    if (enter(crnn, CRNN)) {
        count = has_room(ctpn) && !without_room[crnn]
                    ? answer(image, height, width, type, flag, rects, max_lines, codes, prob, max_width)
                    : -1;
        sleep_until(began, setting("LIBTR_DOUBLE_SLEEP_MS"));
        leave(crnn);
    } else {
        count = garbage(rects, codes, prob, max_width);
    }
    leave(ctpn);
    return count;
}

int tr_recognize(int crnn, void *image, int height, int width, int type, int *codes, float *prob, int max_width) {
    if (!check_image(image, height, width, type) ||
        !check_outputs(image, image_bytes(height, width, type), NULL, 1, codes, prob, max_width))
        return -2;
    struct timespec began = now();
    if (!enter(crnn, CRNN)) return garbage(NULL, codes, prob, max_width);
    misuse_memory();
    spoil(codes, prob, (size_t)max_width);
    int steps = has_room(crnn) ? write_first((struct row){codes, prob, max_width, 0}, image, height, width, type) : -1;
    sleep_until(began, setting("LIBTR_DOUBLE_SLEEP_MS"));
    leave(crnn);
    return nonsense("negative") ? -1 : nonsense("huge") ? max_width + 1 : steps;
}
