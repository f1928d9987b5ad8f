// Messages and barriers for test_ptx_order.py: each pattern once right, and once for each way to get it
// wrong.
#include "common.cuh"

// --- A message: many lanes write, one tells; all lanes of the other side look.

#define MESSAGE(NAME, BEFORE, STORE, LOAD, AFTER)                                             \
    extern "C" __global__ void NAME(int rank, u32* data, u32* flag, u32* out) {               \
        const u32 lane = threadIdx.x;                                                         \
        if (rank == 0) {                                                                      \
            data[lane] = 7 + lane;                                                            \
            BEFORE;                                                                           \
            if (lane == 0) asm volatile(STORE " [%0], %1;" : : "l"(flag), "r"(1) : "memory"); \
            return;                                                                           \
        }                                                                                     \
        u32 seen;                                                                             \
        do asm volatile(LOAD " %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");               \
        while (seen != 1);                                                                    \
        AFTER;                                                                                \
        out[lane] = data[lane];                                                               \
    }

#define REL_SYS "st.release.sys.global.u32"
#define REL_GPU "st.release.gpu.global.u32"
#define REL_CTA "st.release.cta.global.u32"
#define ACQ_SYS "ld.acquire.sys.global.u32"
#define ACQ_GPU "ld.acquire.gpu.global.u32"
#define RLX_ST "st.relaxed.sys.global.u32"
#define RLX_LD "ld.relaxed.sys.global.u32"
#define FENCE_SYS ASM("fence.acq_rel.sys;")
#define FENCE_GPU ASM("fence.acq_rel.gpu;")

MESSAGE(msg_sys, __syncwarp(), REL_SYS, ACQ_SYS, NOTHING)
MESSAGE(msg_gpu, __syncwarp(), REL_GPU, ACQ_GPU, NOTHING)
MESSAGE(msg_gpu_store, __syncwarp(), REL_GPU, ACQ_SYS, NOTHING)
MESSAGE(msg_gpu_load, __syncwarp(), REL_SYS, ACQ_GPU, NOTHING)
MESSAGE(msg_cta_store, __syncwarp(), REL_CTA, ACQ_SYS, NOTHING)
MESSAGE(msg_no_syncwarp, NOTHING, REL_SYS, ACQ_SYS, NOTHING)
MESSAGE(msg_relaxed_store, __syncwarp(), RLX_ST, ACQ_SYS, NOTHING)
MESSAGE(msg_relaxed_load, __syncwarp(), REL_SYS, RLX_LD, NOTHING)
MESSAGE(msg_weak_store, __syncwarp(), "st.global.u32", ACQ_SYS, NOTHING)
MESSAGE(msg_weak_load, __syncwarp(), REL_SYS, "ld.global.u32", NOTHING)
MESSAGE(msg_fences, (__syncwarp(), __threadfence_system()), RLX_ST, RLX_LD, __threadfence_system())
MESSAGE(msg_volatile,
        (__syncwarp(), __threadfence_system()),
        "st.volatile.global.u32",
        "ld.volatile.global.u32",
        __threadfence_system())
MESSAGE(msg_no_second_fence, (__syncwarp(), __threadfence_system()), RLX_ST, RLX_LD, NOTHING)
MESSAGE(msg_no_first_fence, __syncwarp(), RLX_ST, RLX_LD, __threadfence_system())
MESSAGE(msg_fence_gpu, (__syncwarp(), __threadfence()), RLX_ST, RLX_LD, __threadfence_system())
MESSAGE(msg_fence_acquire_gpu, (__syncwarp(), __threadfence_system()), RLX_ST, RLX_LD, __threadfence())
MESSAGE(msg_fence_acquire, __syncwarp(), REL_SYS, RLX_LD, __threadfence_system())

// --- A chain: rank 0 tells rank 1, which tells rank 2, who reads what rank 0 wrote.

#define CHAIN(NAME, LINK)                                                             \
    extern "C" __global__ void NAME(int rank, u32* data, u32* flag, u32* out) {       \
        if (threadIdx.x != 0) return;                                                 \
        if (rank == 0) {                                                              \
            *data = 5;                                                                \
            st_release_sys(flag, 1);                                                  \
        } else if (rank == 1) {                                                       \
            u32 seen;                                                                 \
            do asm volatile(RLX_LD " %0, [%1];" : "=r"(seen) : "l"(flag) : "memory"); \
            while (seen != 1);                                                        \
            asm volatile(LINK " [%0], %1;" : : "l"(flag), "r"(1) : "memory");         \
        } else {                                                                      \
            while (ld_acquire_sys(flag) != 2) {                                       \
            }                                                                         \
            *out = *data;                                                             \
        }                                                                             \
    }

CHAIN(chain_update, "red.relaxed.sys.global.add.u32")
#undef CHAIN
extern "C" __global__ void chain_store(int rank, u32* data, u32* flag, u32* out) {
    if (threadIdx.x != 0) return;
    if (rank == 0) {
        *data = 5;
        st_release_sys(flag, 1);
    } else if (rank == 1) {
        u32 seen;
        do asm volatile(RLX_LD " %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        while (seen != 1);
        asm volatile(RLX_ST " [%0], %1;" : : "l"(flag), "r"(2) : "memory");
    } else {
        while (ld_acquire_sys(flag) != 2) {
        }
        *out = *data;
    }
}

// --- One lane looks for all.

#define ONE_LOOKS(NAME, SYNC)                                                   \
    extern "C" __global__ void NAME(int rank, u32* data, u32* flag, u32* out) { \
        if (rank == 0) {                                                        \
            data[threadIdx.x] = threadIdx.x;                                    \
            __syncwarp();                                                       \
            if (threadIdx.x == 0) st_release_sys(flag, 1);                      \
            return;                                                             \
        }                                                                       \
        if (threadIdx.x == 0)                                                   \
            while (ld_acquire_sys(flag) != 1) {                                 \
            }                                                                   \
        SYNC;                                                                   \
        out[threadIdx.x] = data[threadIdx.x];                                   \
    }
ONE_LOOKS(one_looks, __syncwarp())
ONE_LOOKS(one_looks_alone, NOTHING)

// --- Barriers.

#define NEIGHBOUR(NAME, SYNC)                              \
    extern "C" __global__ void NAME(u32* out) {            \
        __shared__ u32 cell[128];                          \
        cell[threadIdx.x] = 3 * threadIdx.x;               \
        SYNC;                                              \
        out[threadIdx.x] = cell[(threadIdx.x + 33) % 128]; \
    }
NEIGHBOUR(barrier_block, __syncthreads())
NEIGHBOUR(barrier_named, ASM("bar.sync 3, 128;"))
NEIGHBOUR(barrier_missing, NOTHING)
NEIGHBOUR(barrier_warp_only, __syncwarp())
NEIGHBOUR(barrier_too_few, ASM("bar.sync 3, 64;"))
NEIGHBOUR(barrier_too_many, ASM("bar.sync 3, 160;"))

// Warps 0 and 1 give, 2 and 3 take: the givers do not wait.
#define GIVE_AND_TAKE(NAME, GIVE, TAKE)                \
    extern "C" __global__ void NAME(u32* out) {        \
        __shared__ u32 cell[64];                       \
        if (threadIdx.x < 64) {                        \
            cell[threadIdx.x] = threadIdx.x;           \
            GIVE;                                      \
        } else {                                       \
            TAKE;                                      \
            out[threadIdx.x] = cell[threadIdx.x - 64]; \
        }                                              \
    }
GIVE_AND_TAKE(arrive_right, ASM("bar.arrive 1, 128;"), ASM("bar.sync 1, 128;"))
GIVE_AND_TAKE(arrive_elsewhere, ASM("bar.arrive 2, 128;"), ASM("bar.sync 1, 128;"))
GIVE_AND_TAKE(arrive_not_asked, NOTHING, ASM("bar.sync 1, 64;"))

extern "C" __global__ void barrier_votes(u32* out) {
    const u32 odd = __syncthreads_count(threadIdx.x & 1);
    const u32 every = __syncthreads_and(threadIdx.x < 128), any = __syncthreads_or(threadIdx.x == 77);
    out[threadIdx.x] = odd | (every != 0) << 16 | (any != 0) << 17;
}

// --- More readers of a word than a list holds, then a writer.

#define CROWD(NAME, SYNC)                       \
    extern "C" __global__ void NAME(u32* out) { \
        __shared__ u32 cell;                    \
        if (threadIdx.x == 0) cell = 1;         \
        __syncthreads();                        \
        out[threadIdx.x] = cell;                \
        SYNC;                                   \
        if (threadIdx.x == 127) cell = 2;       \
        __syncthreads();                        \
        out[threadIdx.x] += cell;               \
    }
CROWD(crowd, __syncthreads())
CROWD(crowd_no_sync, NOTHING)
CROWD(crowd_warps_only, __syncwarp())
