// A CUDA driver for tests: no GPU behind it, but it records what is launched and can be told to fail.
#pragma once
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int Result;

enum {
    kSuccess = 0,
    kInvalidValue = 1,
    kInvalidDevice = 101,
    kInvalidContext = 201,
    kInvalidHandle = 400,
    kNotFound = 500,
    kNotSupported = 801,
    kCaptureMerge = 902,
    kCaptureIsolation = 905,
    kCaptureImplicit = 906,
    kCapturedEvent = 907,
};

// What a call answers before it does anything: an error asked for by fake_fail_next, or success.
Result fake_verdict(const char* function);

#define BEGIN()                                  \
    do {                                         \
        Result verdict = fake_verdict(__func__); \
        if (verdict != kSuccess) return verdict; \
    } while (0)

// The context of this thread: 0, or 1 + device.
uintptr_t fake_context(void);

// The capture that a stream is in, or 0; whether one is going on; and its streams.
int fake_capture_of(void* stream);
int fake_is_going_on(int capture);
void fake_join_capture(void* stream, int capture);

// Launches so far; keeps a wait among them.
int fake_num_launches(void);
void fake_record_wait(void* stream, const void* params, size_t num_bytes, uintptr_t context);

// A number from the environment.
int fake_setting(const char* name, int otherwise);
