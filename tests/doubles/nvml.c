/* A double of libnvidia-ml.so.1, as far as ocrsvc/system/gpu.py calls it through pynvml, over the simulated GPU of simulated_gpu.h.
 *
 * One GPU, "GPU-0de00000-0000-0000-0000-000000000001"; divided (MIG), its one part is "MIG-0de00000-...-2", and only
 * the part tells which processes there are. The GPU's mode, in its file, says how else it behaves: hides its
 * processes, lists them under the machine's ids (1,000,000 higher), without their sizes, or fails every look.
 */
#define _GNU_SOURCE

#include "simulated_gpu.h"

typedef int nvmlReturn_t;
typedef struct handle *nvmlDevice_t;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, UNKNOWN = 999 };

#define GPU_UUID "GPU-0de00000-0000-0000-0000-000000000001"
#define PART_UUID "MIG-0de00000-0000-0000-0000-000000000002"
#define HOST_IDS_FROM 1000000

struct handle {
    const char *uuid;
};

struct memory {
    unsigned long long total, free, used;
};

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct utilization {
    unsigned gpu, memory;
};

static struct handle whole = {GPU_UUID}, part = {PART_UUID};
static int initialised;

static nvmlReturn_t check(struct gpu **gpu) {
    if (!initialised) return UNINITIALIZED;
    *gpu = gpu_map();
    if (!*gpu) return DRIVER_NOT_LOADED;
    return (*gpu)->mode & GPU_FAILS ? UNKNOWN : SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    initialised = 1;
    return gpu_map() ? SUCCESS : DRIVER_NOT_LOADED;
}

nvmlReturn_t nvmlShutdown(void) {
    initialised = 0;
    return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    return result == UNKNOWN ? "Unknown Error" : result == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Some Error";
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return initialised ? SUCCESS : UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    *device = &whole;
    return index == 0 ? SUCCESS : INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    *device = strcmp(uuid, GPU_UUID) ? &part : &whole;
    return strcmp(uuid, (*device)->uuid) ? NOT_FOUND : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s", device->uuid);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    struct gpu *gpu = NULL;
    nvmlReturn_t result = check(&gpu);
    if (result != SUCCESS) return result;
    *current = *pending = 1;
    return device == &whole && gpu->mode & GPU_DIVIDED ? SUCCESS : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *found) {
    *found = &part;
    return device == &whole && index == 0 ? SUCCESS : NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *memory) {
    struct gpu *gpu = NULL;
    nvmlReturn_t result = check(&gpu);
    if (result != SUCCESS) return result;
    gpu_lock();
    /* The whole of a divided GPU is eight times its part. */
    memory->total = gpu->total * (device == &whole && gpu->mode & GPU_DIVIDED ? 8 : 1);
    memory->used = gpu_used(gpu);
    memory->free = memory->total - memory->used;
    gpu_unlock();
    return SUCCESS;
}

static struct process seen(struct gpu *gpu, struct gpu_entry *entry) {
    unsigned shift = gpu->mode & GPU_HOST_IDS ? HOST_IDS_FROM : 0;
    unsigned long long used = gpu->mode & GPU_NO_SIZES ? ~0ull : entry->bytes;
    return (struct process){(unsigned)entry->pid + shift, used, ~0u, ~0u};
}

static unsigned list(struct gpu *gpu, nvmlDevice_t device, struct process *processes, unsigned room) {
    unsigned count = 0;
    if (gpu->mode & GPU_HIDES || (device == &whole && gpu->mode & GPU_DIVIDED)) return 0;
    gpu_used(gpu);
    for (int i = 0; i < GPU_ENTRIES; i++) {
        if (!gpu->entries[i].pid) continue;
        if (count < room) processes[count] = seen(gpu, &gpu->entries[i]);
        count++;
    }
    return count;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, struct process *processes) {
    struct gpu *gpu = NULL;
    nvmlReturn_t result = check(&gpu);
    if (result != SUCCESS) return result;
    unsigned room = processes ? *count : 0;
    gpu_lock();
    *count = list(gpu, device, processes, room);
    gpu_unlock();
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Of a part NVML knows no load. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *utilization) {
    struct gpu *gpu = NULL;
    nvmlReturn_t result = check(&gpu);
    if (result != SUCCESS) return result;
    *utilization = (struct utilization){37, 12};
    return device == &whole ? SUCCESS : NOT_SUPPORTED;
}
