// Kernels for test_ptx_runner.py: each pattern once right, and once for each way to get it wrong.
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

// --- Bulk copies.

#define BULK_STORE(NAME, SEAL, WAIT)                                                       \
    extern "C" __global__ void NAME(int rank, u32* data, u32* flag, u32* out) {            \
        __shared__ alignas(128) u32 stage[256];                                            \
        if (rank == 0) {                                                                   \
            for (u32 i = threadIdx.x; i < 256; i += 32) stage[i] = 11 * i;                 \
            SEAL;                                                                          \
            __syncwarp();                                                                  \
            if (threadIdx.x == 0) {                                                        \
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" \
                             :                                                             \
                             : "l"(data), "r"(shared_address(stage)), "r"(1024)            \
                             : "memory");                                                  \
                ASM("cp.async.bulk.commit_group;");                                        \
                WAIT;                                                                      \
                st_release_sys(flag, 1);                                                   \
                ASM("cp.async.bulk.wait_group 0;");                                        \
            }                                                                              \
            return;                                                                        \
        }                                                                                  \
        while (ld_acquire_sys(flag) != 1) {                                                \
        }                                                                                  \
        for (u32 i = threadIdx.x; i < 256; i += 32) out[i] = data[i];                      \
    }
BULK_STORE(bulk_store, FENCE_ASYNC, ASM("cp.async.bulk.wait_group 0;"))
BULK_STORE(bulk_store_full_fence, ASM("fence.proxy.async;"), ASM("cp.async.bulk.wait_group 0;"))
BULK_STORE(bulk_store_no_fence, NOTHING, ASM("cp.async.bulk.wait_group 0;"))
BULK_STORE(bulk_store_one_fence, if (threadIdx.x == 0) FENCE_ASYNC, ASM("cp.async.bulk.wait_group 0;"))
BULK_STORE(bulk_store_wrong_fence, FENCE_ASYNC_GLOBAL, ASM("cp.async.bulk.wait_group 0;"))
BULK_STORE(bulk_store_read_wait, FENCE_ASYNC, ASM("cp.async.bulk.wait_group.read 0;"))
BULK_STORE(bulk_store_no_wait, FENCE_ASYNC, NOTHING)
BULK_STORE(bulk_store_lax_wait, FENCE_ASYNC, ASM("cp.async.bulk.wait_group 1;"))

// Two rows through one stage.
#define REUSE(NAME, WAIT, SYNC)                                                            \
    extern "C" __global__ void NAME(u32* out) {                                            \
        __shared__ alignas(128) u32 stage[32];                                             \
        for (u32 row = 0; row < 4; ++row) {                                                \
            stage[threadIdx.x] = 100 * row + threadIdx.x;                                  \
            FENCE_ASYNC;                                                                   \
            __syncwarp();                                                                  \
            if (threadIdx.x == 0) {                                                        \
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" \
                             :                                                             \
                             : "l"(out + 32 * row), "r"(shared_address(stage)), "r"(128)   \
                             : "memory");                                                  \
                ASM("cp.async.bulk.commit_group;");                                        \
                WAIT;                                                                      \
            }                                                                              \
            SYNC;                                                                          \
        }                                                                                  \
        if (threadIdx.x == 0) ASM("cp.async.bulk.wait_group 0;");                          \
    }
REUSE(reuse, ASM("cp.async.bulk.wait_group.read 0;"), __syncwarp())
REUSE(reuse_no_wait, NOTHING, __syncwarp())
REUSE(reuse_no_sync, ASM("cp.async.bulk.wait_group.read 0;"), NOTHING)

#define LOAD_BULK(SPACE)                                                                             \
    asm volatile("cp.async.bulk." SPACE ".global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" \
                 :                                                                                   \
                 : "r"(shared_address(stage)), "l"(in), "r"(1024), "r"(shared_address(&bar))         \
                 : "memory")
#define WAIT_PHASE(PARITY)                                                                                  \
    for (u32 done = 0; done == 0;)                                                                          \
    asm volatile(                                                                                           \
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" \
        : "=r"(done)                                                                                        \
        : "r"(shared_address(&bar)), "r"(PARITY)                                                            \
        : "memory")

#define BULK_LOAD(NAME, SPACE, INIT_FENCE, BYTES, WAIT)                           \
    extern "C" __global__ void NAME(const u32* in, u32* out) {                    \
        __shared__ alignas(128) u32 stage[256];                                   \
        __shared__ u64 bar;                                                       \
        if (threadIdx.x == 0) {                                                   \
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"                \
                         :                                                        \
                         : "r"(shared_address(&bar)), "r"(1)                      \
                         : "memory");                                             \
            INIT_FENCE;                                                           \
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" \
                         :                                                        \
                         : "r"(shared_address(&bar)), "r"(BYTES)                  \
                         : "memory");                                             \
            LOAD_BULK(SPACE);                                                     \
        }                                                                         \
        __syncthreads();                                                          \
        WAIT;                                                                     \
        for (u32 i = threadIdx.x; i < 256; i += blockDim.x) out[i] = stage[i];    \
        __syncthreads();                                                          \
        WAIT_PHASE(0);                                                            \
    }
#define INIT ASM("fence.mbarrier_init.release.cluster;")
BULK_LOAD(bulk_load, "shared::cluster", INIT, 1024, WAIT_PHASE(0))
BULK_LOAD(bulk_load_cta, "shared::cta", FENCE_ASYNC, 1024, WAIT_PHASE(0))
BULK_LOAD(bulk_load_no_init_fence, "shared::cluster", NOTHING, 1024, WAIT_PHASE(0))
BULK_LOAD(bulk_load_no_wait, "shared::cluster", INIT, 1024, NOTHING)
BULK_LOAD(bulk_load_wrong_phase, "shared::cluster", INIT, 1024, WAIT_PHASE(1))
BULK_LOAD(bulk_load_too_few_bytes, "shared::cluster", INIT, 512, WAIT_PHASE(0))
BULK_LOAD(bulk_load_too_many_bytes, "shared::cluster", INIT, 2048, WAIT_PHASE(0))

// What a peer wrote is loaded by a bulk copy; the acquire is generic, so a proxy fence must follow it.
#define PULL(NAME, SEAL, ISSUER)                                                  \
    extern "C" __global__ void NAME(int rank, u32* in, u32* flag, u32* out) {     \
        __shared__ alignas(128) u32 stage[256];                                   \
        __shared__ u64 bar;                                                       \
        if (rank == 0) {                                                          \
            for (u32 i = threadIdx.x; i < 256; i += 32) in[i] = i;                \
            __syncwarp();                                                         \
            if (threadIdx.x == 0) st_release_sys(flag, 1);                        \
            return;                                                               \
        }                                                                         \
        if (threadIdx.x == 0) {                                                   \
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"                \
                         :                                                        \
                         : "r"(shared_address(&bar)), "r"(1)                      \
                         : "memory");                                             \
            INIT;                                                                 \
            while (ld_acquire_sys(flag) != 1) {                                   \
            }                                                                     \
            SEAL;                                                                 \
        }                                                                         \
        __syncwarp();                                                             \
        if (threadIdx.x == ISSUER) {                                              \
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" \
                         :                                                        \
                         : "r"(shared_address(&bar)), "r"(1024)                   \
                         : "memory");                                             \
            LOAD_BULK("shared::cluster");                                         \
        }                                                                         \
        __syncwarp();                                                             \
        WAIT_PHASE(0);                                                            \
        for (u32 i = threadIdx.x; i < 256; i += 32) out[i] = stage[i];            \
    }
PULL(pull, ASM("fence.proxy.async.global;"), 0)
PULL(pull_full_fence, ASM("fence.proxy.async;"), 0)
PULL(pull_no_fence, NOTHING, 0)
PULL(pull_wrong_fence, FENCE_ASYNC, 0)
PULL(pull_by_another, ASM("fence.proxy.async.global;"), 9)
PULL(pull_by_another_no_fence, NOTHING, 9)

// A stage is loaded, read, and loaded again.
#define RELOAD(NAME, BETWEEN)                                                         \
    extern "C" __global__ void NAME(const u32* in, u32* out) {                        \
        __shared__ alignas(128) u32 stage[256];                                       \
        __shared__ u64 bar;                                                           \
        if (threadIdx.x == 0) {                                                       \
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"                    \
                         :                                                            \
                         : "r"(shared_address(&bar)), "r"(1)                          \
                         : "memory");                                                 \
            INIT;                                                                     \
        }                                                                             \
        __syncwarp();                                                                 \
        for (u32 row = 0; row < 3; ++row) {                                           \
            if (threadIdx.x == 0) {                                                   \
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" \
                             :                                                        \
                             : "r"(shared_address(&bar)), "r"(1024)                   \
                             : "memory");                                             \
                LOAD_BULK("shared::cluster");                                         \
            }                                                                         \
            WAIT_PHASE(row & 1);                                                      \
            for (u32 i = threadIdx.x; i < 256; i += 32) out[i] = stage[i] + row;      \
            BETWEEN;                                                                  \
            in += 256;                                                                \
        }                                                                             \
    }
RELOAD(reload, FENCE_ASYNC; __syncwarp())
RELOAD(reload_no_fence, __syncwarp())
RELOAD(reload_no_sync, FENCE_ASYNC)

// --- Barriers in memory: warp 0 gives rows through two slots, warp 1 takes them.

__device__ void init_mbarrier(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(shared_address(barrier)), "r"(count)
                 : "memory");
}
__device__ void arrive_at(u64* barrier) {
    u64 state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];"
                 : "=l"(state)
                 : "r"(shared_address(barrier))
                 : "memory");
}
__device__ void wait_at(u64* barrier, u32 parity) {
    u32 done;
    do
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
            "p;\n}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    while (done == 0);
}
#define PIPELINE(NAME, INIT_SYNC, WAIT_EMPTY, WAIT_FULL, ARRIVALS) \
    extern "C" __global__ void NAME(u32* out) {                    \
        __shared__ u32 slots[2][32];                               \
        __shared__ u64 full[2], empty[2];                          \
        const u32 lane = threadIdx.x % 32;                         \
        if (threadIdx.x < 2) {                                     \
            init_mbarrier(full + threadIdx.x, ARRIVALS);           \
            init_mbarrier(empty + threadIdx.x, 32);                \
        }                                                          \
        INIT_SYNC;                                                 \
        for (u32 row = 0; row < 8; ++row) {                        \
            const u32 slot = row % 2, turn = row / 2;              \
            if (threadIdx.x < 32) {                                \
                if (turn != 0) WAIT_EMPTY;                         \
                slots[slot][lane] = 32 * row + lane;               \
                arrive_at(full + slot);                            \
            } else {                                               \
                WAIT_FULL;                                         \
                out[32 * row + lane] = slots[slot][31 - lane];     \
                arrive_at(empty + slot);                           \
            }                                                      \
        }                                                          \
    }
#define EMPTY wait_at(empty + slot, (turn + 1) % 2)
#define FULL wait_at(full + slot, turn % 2)
PIPELINE(pipeline, __syncthreads(), EMPTY, FULL, 32)
PIPELINE(pipeline_no_init_sync, NOTHING, EMPTY, FULL, 32)
PIPELINE(pipeline_no_empty, __syncthreads(), NOTHING, FULL, 32)
PIPELINE(pipeline_no_full, __syncthreads(), EMPTY, NOTHING, 32)
PIPELINE(pipeline_wrong_parity, __syncthreads(), wait_at(empty + slot, turn % 2), FULL, 32)
PIPELINE(pipeline_too_few, __syncthreads(), EMPTY, FULL, 31)
PIPELINE(pipeline_too_many, __syncthreads(), EMPTY, FULL, 33)

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

// --- A kernel that ends while its bulk copies land; the next kernel of the stream reads them.

#define LEAVE(NAME, WAIT)                                                              \
    extern "C" __global__ void NAME(u32* out) {                                        \
        __shared__ alignas(128) u32 stage[1024];                                       \
        for (u32 i = threadIdx.x; i < 1024; i += 32) stage[i] = i;                     \
        FENCE_ASYNC;                                                                   \
        __syncwarp();                                                                  \
        if (threadIdx.x == 0) {                                                        \
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" \
                         :                                                             \
                         : "l"(out), "r"(shared_address(stage)), "r"(4096)             \
                         : "memory");                                                  \
            ASM("cp.async.bulk.commit_group;");                                        \
            WAIT;                                                                      \
        }                                                                              \
    }
LEAVE(leave, ASM("cp.async.bulk.wait_group.read 0;"))
LEAVE(leave_at_once, NOTHING)
extern "C" __global__ void double_words(u32* words) {
    for (u32 i = threadIdx.x; i < 1024; i += 32) words[i] *= 2;
}
