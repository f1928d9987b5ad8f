// GPUs, as the environment describes them: FAKE_CUDA_DEVICES, _CAPABILITY, _NVLINK.
#include <stdio.h>
#include <stdlib.h>

#include "fake.h"

int fake_setting(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}

EXPORT Result cuDeviceGetCount(int* count) {
    BEGIN();
    *count = fake_setting("FAKE_CUDA_DEVICES", 2);
    return kSuccess;
}
EXPORT Result cuDeviceGet(int* device, int ordinal) {
    BEGIN();
    *device = ordinal;
    return ordinal < fake_setting("FAKE_CUDA_DEVICES", 2) ? kSuccess : kInvalidDevice;
}
EXPORT Result cuDeviceGetAttribute(int* value, int attribute, int device) {
    BEGIN();
    (void)device;
    const int capability = fake_setting("FAKE_CUDA_CAPABILITY", 90);
    switch (attribute) {
        case 16:
            *value = 132;
            break;  // multiprocessors
        case 75:
            *value = capability / 10;
            break;  // compute capability, major
        case 76:
            *value = capability % 10;
            break;  // and minor
        case 97:
            *value = 232448;
            break;  // most shared memory of a block
        default:
            *value = 1;
    }
    return kSuccess;
}
EXPORT Result cuDeviceGetName(char* name, int size, int device) {
    BEGIN();
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return kSuccess;
}
EXPORT Result cuDeviceGetPCIBusId(char* id, int size, int device) {
    BEGIN();
    snprintf(id, (size_t)size, "0000:%02X:00.0", 0x17 + device);
    return kSuccess;
}
EXPORT Result cuDeviceGetByPCIBusId(int* device, const char* id) {
    BEGIN();
    unsigned bus = 0;
    if (sscanf(id, "%*x:%x:", &bus) != 1 || bus < 0x17) return kInvalidDevice;
    *device = (int)bus - 0x17;
    return *device < fake_setting("FAKE_CUDA_DEVICES", 2) ? kSuccess : kInvalidDevice;
}
EXPORT Result cuDeviceCanAccessPeer(int* can, int device, int peer) {
    BEGIN();
    *can = device != peer;
    return kSuccess;
}
EXPORT Result cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
    BEGIN();
    (void)device, (void)peer;
    *value = attribute == 3 ? fake_setting("FAKE_CUDA_NVLINK", 1) : 1;  // 3: native atomics
    return kSuccess;
}
