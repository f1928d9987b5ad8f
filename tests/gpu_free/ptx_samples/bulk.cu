// Bulk copies and mbarriers for test_ptx_bulk.py: each pattern once right, and once for each way to get it
// wrong.
#include "common.cuh"

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
