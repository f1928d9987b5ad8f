// What the sample kernels share: single PTX accesses.
#pragma once

#include <cuda_runtime.h>

using u32 = unsigned;
using u64 = unsigned long long;

#define ASM(...) asm volatile(__VA_ARGS__ : : : "memory")
#define FENCE_ASYNC ASM("fence.proxy.async.shared::cta;")
#define FENCE_ASYNC_GLOBAL ASM("fence.proxy.async.global;")
#define NOTHING

__device__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ void st_release_sys(u32* flag, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(flag), "r"(value) : "memory");
}
__device__ u32 ld_acquire_sys(const u32* flag) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
