// Libraries, kernels and launches. A kernel exists as soon as somebody asks for its name.
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { kMaxKernels = 64, kMaxLaunches = 4096, kMaxParams = 4096, kMaxAttributes = 4, kAttributeBytes = 72 };

typedef struct {
    char name[64];
    size_t param_bytes;
    int num_params;
    int shared_bytes;  // as last set by cuKernelSetAttribute
    int num_attribute_calls;
    int num_loads;
} Kernel;

typedef struct {  // the driver's
    unsigned grid[3], block[3], shared;
    void* stream;
    const char* attributes;
    unsigned num_attributes;
} Config;

typedef struct {  // read by fake_cuda/driver.py: keep in step
    char name[64];
    unsigned grid[3], block[3], shared, num_attributes;
    uint64_t stream, context, param_bytes, capture;
    unsigned attributes[kMaxAttributes];
    unsigned char params[kMaxParams];
} Launch;

// Called in the launching thread; what it returns is the launch's result.
typedef Result (*Callback)(const char* name,
                           const void* params,
                           size_t param_bytes,
                           const unsigned* grid,
                           const unsigned* block,
                           unsigned shared,
                           void* stream);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Kernel kernels[kMaxKernels];
static int num_kernels;
static Launch* launches;
static int num_launches;
static int num_libraries;
static Callback callback;

static Kernel* kernel_named(const char* name) {
    pthread_mutex_lock(&lock);
    Kernel* found = NULL;
    for (int i = 0; i < num_kernels && !found; ++i) {
        if (strcmp(kernels[i].name, name) == 0) found = &kernels[i];
    }
    if (!found && num_kernels < kMaxKernels) {
        found = &kernels[num_kernels++];
        strncpy(found->name, name, sizeof found->name - 1);
        found->num_params = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

// ---- what tests ask ----
EXPORT void fake_set_params(const char* kernel, int num_params, size_t bytes) {
    kernel_named(kernel)->num_params = num_params;
    kernel_named(kernel)->param_bytes = bytes;
}
EXPORT void fake_set_launch_callback(Callback function) {
    callback = function;
}
EXPORT int fake_num_launches(void) {
    return num_launches;
}
EXPORT const Launch* fake_launch(int index) {
    return &launches[index % kMaxLaunches];
}
// The next launch of a capture, from number `from` on; -1: none.
EXPORT int fake_next_captured(int capture, int from) {
    for (int i = from; i < num_launches; ++i)
        if (launches[i % kMaxLaunches].capture == (uint64_t)capture) return i;
    return -1;
}
// Runs one launch again, as a graph does.
EXPORT Result fake_replay(int index) {
    const Launch launch = launches[index % kMaxLaunches];
    if (strcmp(launch.name, "wait") == 0) return kSuccess;
    return callback(launch.name, launch.params, launch.param_bytes, launch.grid, launch.block, launch.shared,
                    (void*)launch.stream);
}
EXPORT void fake_forget_launches(void) {
    num_launches = 0;
}
EXPORT int fake_num_libraries(void) {
    return num_libraries;
}
EXPORT int fake_shared_bytes(const char* kernel) {
    return kernel_named(kernel)->shared_bytes;
}
EXPORT int fake_num_attribute_calls(const char* kernel) {
    return kernel_named(kernel)->num_attribute_calls;
}
EXPORT int fake_num_loads(const char* kernel) {
    return kernel_named(kernel)->num_loads;
}

// ---- the driver ----
EXPORT Result cuLibraryLoadData(
    void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
    BEGIN();
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    *library = (void*)code;
    ++num_libraries;
    return fake_context() ? kSuccess : kInvalidContext;
}
EXPORT Result cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    BEGIN();
    (void)library;
    *kernel = kernel_named(name);
    return *kernel ? kSuccess : kNotFound;
}
EXPORT Result cuKernelGetFunction(void** function, void* kernel) {
    BEGIN();
    *function = kernel;
    return fake_context() ? kSuccess : kInvalidContext;
}
EXPORT Result cuFuncLoad(void* function) {
    BEGIN();
    ++((Kernel*)function)->num_loads;
    return kSuccess;
}
EXPORT Result cuKernelGetParamInfo(void* kernel, size_t index, size_t* offset, size_t* size) {
    BEGIN();
    const Kernel* asked = kernel;
    if (index >= (size_t)asked->num_params) return kInvalidValue;
    *offset = index * asked->param_bytes;
    *size = asked->param_bytes;
    return kSuccess;
}
EXPORT Result cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
    BEGIN();
    (void)device;
    if (attribute != 8 || value > 232448) return kInvalidValue;  // 8: most dynamic shared memory
    ((Kernel*)kernel)->shared_bytes = value;
    ++((Kernel*)kernel)->num_attribute_calls;
    return kSuccess;
}
EXPORT Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          void* function,
                                                          int threads,
                                                          size_t shared) {
    BEGIN();
    (void)function, (void)shared;
    *blocks = 2048 / threads;
    return fake_context() ? kSuccess : kInvalidContext;
}

static void record(const Config* config, const Kernel* kernel, const void* params, uintptr_t context) {
    const int capture = fake_capture_of(config->stream);
    pthread_mutex_lock(&lock);
    if (!launches) launches = calloc(kMaxLaunches, sizeof(Launch));
    Launch* launch = &launches[num_launches++ % kMaxLaunches];
    memcpy(launch->name, kernel->name, sizeof launch->name);
    memcpy(launch->grid, config->grid, sizeof launch->grid);
    memcpy(launch->block, config->block, sizeof launch->block);
    launch->shared = config->shared;
    launch->stream = (uint64_t)config->stream;
    launch->context = context;
    launch->capture = (uint64_t)capture;
    launch->num_attributes = config->num_attributes;
    for (unsigned i = 0; i < config->num_attributes && i < kMaxAttributes; ++i) {
        memcpy(&launch->attributes[i], config->attributes + i * kAttributeBytes, sizeof(unsigned));
    }
    launch->param_bytes = kernel->param_bytes < kMaxParams ? kernel->param_bytes : kMaxParams;
    memcpy(launch->params, params, launch->param_bytes);
    pthread_mutex_unlock(&lock);
}

EXPORT Result cuLaunchKernelEx(const Config* config, void* function, void** params, void** extra) {
    BEGIN();
    const Kernel* kernel = function;
    if (!fake_context()) return kInvalidContext;
    if (extra || !config->grid[0] || !config->block[0]) return kInvalidValue;
    record(config, kernel, params[0], fake_context());
    if (!callback || fake_capture_of(config->stream)) return kSuccess;
    return callback(kernel->name, params[0], kernel->param_bytes, config->grid, config->block, config->shared,
                    config->stream);
}

void fake_record_wait(void* stream, const void* params, size_t num_bytes, uintptr_t context) {
    const Kernel wait = {.name = "wait", .param_bytes = num_bytes};
    const Config config = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = stream};
    record(&config, &wait, params, context);
}
