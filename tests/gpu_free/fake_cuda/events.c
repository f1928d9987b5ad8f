// Events, and streams that wait for them.
#include <stdlib.h>

#include "fake.h"

// An event knows the stream it was recorded on, how many launches there were by then, and the context it was
// made in. A wait is kept among the launches: kernel "wait" on the stream that waits, its parameter says for
// what.
typedef struct {
    uint64_t stream, num_launches;
    uintptr_t context;
    int capture;
} Event;

EXPORT Result cuEventCreate(void** event, unsigned flags) {
    BEGIN();
    (void)flags;
    if (!fake_context()) return kInvalidContext;
    Event* made = calloc(1, sizeof(Event));
    made->context = fake_context();
    *event = made;
    return kSuccess;
}
EXPORT Result cuEventRecord(void* event, void* stream) {
    BEGIN();
    Event* marked = event;
    marked->stream = (uint64_t)stream;
    marked->num_launches = (uint64_t)fake_num_launches();
    marked->capture = fake_capture_of(stream);
    return kSuccess;
}
EXPORT Result cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
    BEGIN();
    (void)flags;
    const Event* marked = event;
    const int capture = fake_capture_of(stream);
    if (marked->capture && !fake_is_going_on(marked->capture)) return kCapturedEvent;
    if (capture && !marked->capture) return kCaptureIsolation;
    if (capture && capture != marked->capture) return kCaptureMerge;
    if (marked->capture && !capture) fake_join_capture(stream, marked->capture);
    fake_record_wait(stream, marked, 2 * sizeof(uint64_t), marked->context);
    return kSuccess;
}
EXPORT Result cuEventDestroy_v2(void* event) {
    BEGIN();
    free(event);
    return kSuccess;
}
