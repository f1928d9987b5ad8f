// Contexts, streams, host memory, errors, and how functions are found.
#include "fake.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMaxFailures = 16, kMaxContexts = 16, kMaxCaptured = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char function[64];
    Result code;
} failures[kMaxFailures];
static int num_failures;
static void* capturing_stream;
static int capturing_status;
static struct {
    void* stream;
    int capture;
} captured[kMaxCaptured];
static int num_host_allocations;
static __thread uintptr_t contexts[kMaxContexts];
static __thread int depth;

// ---- what tests ask ----
EXPORT void fake_fail_next(const char* function, int code) {
    pthread_mutex_lock(&lock);
    if (num_failures < kMaxFailures) {
        snprintf(failures[num_failures].function, sizeof failures[0].function, "%s", function);
        failures[num_failures++].code = code;
    }
    pthread_mutex_unlock(&lock);
}
EXPORT void fake_set_capturing(void* stream, int status) {
    capturing_stream = stream;
    capturing_status = status;
}
EXPORT void fake_join_capture(void* stream, int capture) {
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < kMaxCaptured && captured[i].capture != 0) ++i;
    if (i == kMaxCaptured) abort();
    captured[i].stream = stream;
    captured[i].capture = capture;
    pthread_mutex_unlock(&lock);
}
EXPORT void fake_end_capture(int capture) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < kMaxCaptured; ++i)
        if (captured[i].capture == capture) captured[i].capture = 0;
    pthread_mutex_unlock(&lock);
}
EXPORT int fake_num_host_allocations(void) {
    return num_host_allocations;
}

Result fake_verdict(const char* function) {
    Result code = kSuccess;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_failures && code == kSuccess; ++i) {
        if (strcmp(failures[i].function, function) != 0) continue;
        code = failures[i].code;
        failures[i] = failures[--num_failures];
    }
    pthread_mutex_unlock(&lock);
    return code;
}
int fake_capture_of(void* stream) {
    int capture = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < kMaxCaptured; ++i)
        if (captured[i].capture != 0 && captured[i].stream == stream) capture = captured[i].capture;
    pthread_mutex_unlock(&lock);
    return capture;
}
int fake_is_going_on(int capture) {
    int going_on = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < kMaxCaptured; ++i) going_on |= captured[i].capture == capture;
    pthread_mutex_unlock(&lock);
    return going_on;
}
uintptr_t fake_context(void) {
    return contexts[depth];
}

// ---- the driver ----
EXPORT Result cuInit(unsigned flags) {
    BEGIN();
    return flags ? kInvalidValue : kSuccess;
}
EXPORT Result cuDriverGetVersion(int* version) {
    *version = fake_setting("FAKE_CUDA_DRIVER_VERSION", 13000);
    return kSuccess;
}
static const char* const kErrors[][2] = {{"CUDA_ERROR_INVALID_VALUE", "invalid argument"},
                                         {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}};
EXPORT Result cuGetErrorName(int code, const char** name) {
    *name = code == 1 || code == 2 ? kErrors[code - 1][0]
            : code == 700          ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                   : "CUDA_ERROR_FAKE";
    return kSuccess;
}
EXPORT Result cuGetErrorString(int code, const char** text) {
    *text = code == 1 || code == 2 ? kErrors[code - 1][1] : "as the test asked";
    return kSuccess;
}

// ---- contexts: a new thread has none ----
EXPORT Result cuDevicePrimaryCtxRetain(void** context, int device) {
    BEGIN();
    *context = (void*)(uintptr_t)(1 + device);
    return kSuccess;
}
EXPORT Result cuCtxGetCurrent(void** context) {
    BEGIN();
    *context = (void*)contexts[depth];
    return kSuccess;
}
EXPORT Result cuCtxSetCurrent(void* context) {
    BEGIN();
    contexts[depth] = (uintptr_t)context;
    return kSuccess;
}
EXPORT Result cuCtxPushCurrent_v2(void* context) {
    BEGIN();
    if (depth + 1 == kMaxContexts) return kInvalidContext;
    contexts[++depth] = (uintptr_t)context;
    return kSuccess;
}
EXPORT Result cuCtxPopCurrent_v2(void** context) {
    BEGIN();
    if (depth == 0) return kInvalidContext;
    *context = (void*)contexts[depth--];
    return kSuccess;
}
EXPORT Result cuCtxSynchronize(void) {
    BEGIN();
    return fake_context() ? kSuccess : kInvalidContext;
}

// ---- streams ----
EXPORT Result cuStreamIsCapturing(void* stream, int* status) {
    BEGIN();
    int any = 0;
    for (int i = 0; i < kMaxCaptured; ++i) any |= captured[i].capture != 0;
    if (stream == NULL && (capturing_status || any)) return kCaptureImplicit;
    *status = fake_capture_of(stream) ? 1 : stream == capturing_stream ? capturing_status : 0;
    return kSuccess;
}

// ---- host memory ----
EXPORT Result cuMemHostAlloc(void** memory, size_t size, unsigned flags) {
    BEGIN();
    if (flags != 3) return kInvalidValue;  // portable and mapped: all that deep_ll asks for
    *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (*memory) memset(*memory, 0xA5, size);
    ++num_host_allocations;
    return kSuccess;
}
EXPORT Result cuMemHostGetDevicePointer_v2(void** device, void* memory, unsigned flags) {
    BEGIN();
    *device = memory;
    return flags ? kInvalidValue : kSuccess;
}
EXPORT Result cuMemFreeHost(void* memory) {
    BEGIN();
    free(memory);
    --num_host_allocations;
    return kSuccess;
}

// ---- how bindings find all this ----
static Result not_in_the_fake(void) {
    return kNotSupported;
}
EXPORT Result
cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
    (void)version, (void)flags;
    static const char* const kSuffixes[] = {"_v2", ""};
    Dl_info self;
    dladdr((void*)cuInit, &self);
    void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = NULL;
    for (int i = 0; i < 2 && *function == NULL; ++i) {
        char full[128];
        snprintf(full, sizeof full, "%s%s", name, kSuffixes[i]);
        *function = dlsym(library, full);
    }
    if (*function == NULL) *function = (void*)not_in_the_fake;
    if (status) *status = 0;
    return kSuccess;
}
EXPORT Result cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
